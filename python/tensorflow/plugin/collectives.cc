#include "collectives.h"

#include <cstring>
#include <utility>

#include "step.h"
#include "tensorflow/core/common_runtime/base_collective_executor.h"
#include "tensorflow/core/distributed_runtime/collective_param_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/collective_rma_distributed.h"
#include "tensorflow/core/distributed_runtime/device_resolver_distributed.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"
#include "tensorflow/core/distributed_runtime/rpc_collective_executor_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/device_attributes.pb.h"
#include "tensorflow/core/nccl/collective_communicator.h"
#include "tensorflow/core/protobuf/worker.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace sealane_tensorflow {
namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::CancellationManager;
using tensorflow::Device;
using tensorflow::DeviceContext;
using tensorflow::DeviceLocality;
using tensorflow::DeviceNameUtils;
using tensorflow::StatusCallback;
using tensorflow::Tensor;

// What both sides derive alike: whether a transfer can go by Sealane, and as which pair.
struct Transfer {
  // Between CPUs of different tasks.
  bool of_cpus;
  // `of_cpus`, and the tensor is nothing but its bytes.
  bool possible;
  DeviceNameUtils::ParsedName peer;
  std::string pair;
};

bool OfCpus(const std::string& source, const std::string& destination) {
  DeviceNameUtils::ParsedName from, to;
  return DeviceNameUtils::ParseFullName(source, &from) && DeviceNameUtils::ParseFullName(destination, &to) &&
         from.type == tensorflow::DEVICE_CPU && to.type == tensorflow::DEVICE_CPU && !DeviceNameUtils::IsSameAddressSpace(from, to);
}

Transfer TransferOf(const std::string& source, uint64_t incarnation, const std::string& destination, const std::string& peer,
                    const Tensor& tensor) {
  Transfer transfer;
  transfer.of_cpus = OfCpus(source, destination) && DeviceNameUtils::ParseFullName(peer, &transfer.peer);
  transfer.possible = transfer.of_cpus && PlainTypeOf(tensor.dtype()).has_value();
  transfer.pair = absl::StrCat(source, ";", absl::Hex(incarnation, absl::kZeroPad16), ";", destination, ";");
  return transfer;
}

class Access : public tensorflow::CollectiveRemoteAccessDistributed {
 public:
  Access(const tensorflow::DeviceMgr* devices, tensorflow::DeviceResolverInterface* resolver,
         std::shared_ptr<tensorflow::UnboundedWorkQueue> work, tensorflow::WorkerCacheInterface* cache, int64_t id, std::string task,
         std::shared_ptr<Endpoint> endpoint)
      : CollectiveRemoteAccessDistributed(devices, resolver, std::move(work), cache, id, std::move(task)),
        step_(new Step(std::move(endpoint), Step::Of::kCollective, id, /*pool=*/nullptr)) {}
  ~Access() override {
    step_->End();
    step_->Unref();
  }

  void PostToPeer(const std::string& peer_device, const std::string& peer_task, const std::string& key, Device* device,
                  DeviceContext* context, const AllocatorAttributes& attributes, const Tensor* tensor, const DeviceLocality& locality,
                  CancellationManager* cancellation, const StatusCallback& done) override;
  void RecvFromPeer(const std::string& peer_device, const std::string& peer_task, bool local, const std::string& key, Device* device,
                    DeviceContext* context, const AllocatorAttributes& attributes, Tensor* tensor, const DeviceLocality& locality,
                    int stream, CancellationManager* cancellation, const StatusCallback& done) override;
  void StartAbort(const absl::Status& status) override;

  CancellationManager* abortion() { return &abortion_cancel_mgr_; }
  Step* step() { return step_; }

 private:
  Step* const step_;
};

class CollectiveSending : public Sending {
 public:
  CollectiveSending(const std::string& key, const Tensor& tensor, std::function<void()> by_grpc, StatusCallback done)
      : Sending(key, tensor, /*dead=*/false), by_grpc_(std::move(by_grpc)), done_(std::move(done)) {}

  void LeaveForGrpc() override {
    left_ = true;
    by_grpc_();  // Calls `done` once the tensor is taken.
  }
  void Ended(const absl::Status& status) override {
    if (!left_) done_(status);
  }

 private:
  const std::function<void()> by_grpc_;
  const StatusCallback done_;
  bool left_ = false;
};

void Access::PostToPeer(const std::string& peer_device, const std::string& peer_task, const std::string& key, Device* device,
                        DeviceContext* context, const AllocatorAttributes& attributes, const Tensor* tensor,
                        const DeviceLocality& locality, CancellationManager* cancellation, const StatusCallback& done) {
  auto by_grpc = [=] {
    CollectiveRemoteAccessLocal::PostToPeer(peer_device, peer_task, key, device, context, attributes, tensor, locality, cancellation, done);
  };
  Transfer transfer = TransferOf(device->name(), device->attributes().incarnation(), peer_device, peer_task, *tensor);
  if (!transfer.possible && transfer.of_cpus) step_->LeftForGrpc(key);
  if (!transfer.possible || step_->ended()) return by_grpc();
  step_->Send(transfer.pair, [&] { return step_->endpoint()->book().Find(transfer.peer); },
              std::make_unique<CollectiveSending>(key, *tensor, by_grpc, done));
}

class CollectiveAsking : public Asking {
 public:
  CollectiveAsking(const std::string& key, Tensor* tensor, std::function<void(const StatusCallback&)> by_grpc, StatusCallback done)
      : Asking(key), tensor_(tensor), by_grpc_(std::move(by_grpc)), done_(std::move(done)) {}

  // Cancels with `manager`, at once if it is cancelled already, until Received or AskByGrpc.
  void EndsWith(CancellationManager* manager) {
    if (manager == nullptr) return;
    tensorflow::CancellationToken token = manager->get_cancellation_token();
    Ref();
    bool registered = manager->RegisterCallback(token, [this] { Cancel(absl::CancelledError("Sealane: the collective was cancelled")); });
    if (registered) {
      managers_.emplace_back(manager, token);
    } else {
      Cancel(absl::CancelledError("Sealane: the collective was cancelled"));
      Unref();
    }
  }

  void Received(const absl::Status& received, const Incoming& incoming, sealane_tensor* came) override {
    Forget();
    absl::Status status = received;
    if (status.ok() && (incoming.dead || incoming.type != tensor_->dtype() || incoming.bytes != tensor_->TotalBytes())) {
      status = absl::InternalError(absl::StrCat("Sealane: a collective's tensor of ", incoming.bytes, " bytes came where ",
                                                tensor_->DebugString(0), " was expected"));
    }
    if (status.ok() && incoming.bytes > 0) std::memcpy(tensor_->data(), incoming.data, incoming.bytes);
    sealane_tensor_free(came);
    done_(status);
  }
  void AskByGrpc(std::function<void()> over) override {
    Forget();
    by_grpc_([over = std::move(over), done = done_](const absl::Status& status) {
      if (over) over();
      done(status);
    });
  }

 private:
  void Forget() {
    for (auto& [manager, token] : managers_) {
      manager->DeregisterCallback(token);  // Waits for the callback if it is running.
      Unref();
    }
    managers_.clear();
  }

  Tensor* const tensor_;
  const std::function<void(const StatusCallback&)> by_grpc_;
  const StatusCallback done_;
  std::vector<std::pair<CancellationManager*, tensorflow::CancellationToken>> managers_;
};

void Access::RecvFromPeer(const std::string& peer_device, const std::string& peer_task, bool local, const std::string& key, Device* device,
                          DeviceContext* context, const AllocatorAttributes& attributes, Tensor* tensor, const DeviceLocality& locality,
                          int stream, CancellationManager* cancellation, const StatusCallback& done) {
  auto by_grpc = [=](const StatusCallback& done) {
    CollectiveRemoteAccessDistributed::RecvFromPeer(peer_device, peer_task, local, key, device, context, attributes, tensor, locality,
                                                    stream, cancellation, done);
  };
  tensorflow::DeviceAttributes producer;
  if (local || !dev_resolver_->GetDeviceAttributes(peer_device, &producer).ok()) return by_grpc(done);
  Transfer transfer = TransferOf(peer_device, producer.incarnation(), device->name(), peer_task, *tensor);
  if (!transfer.possible) return by_grpc(done);
  auto* asking = new CollectiveAsking(key, tensor, by_grpc, done);
  asking->EndsWith(&abortion_cancel_mgr_);
  asking->EndsWith(cancellation);
  step_->Ask(transfer.pair, [&] { return step_->endpoint()->book().Find(transfer.peer); }, asking);
}

void Access::StartAbort(const absl::Status& status) {
  CollectiveRemoteAccessDistributed::StartAbort(status);  // Cancels pending recvs.
  if (!step_->ended()) step_->endpoint()->TellAborted(*step_, status);
  step_->End();
}

class Mgr : public tensorflow::RpcCollectiveExecutorMgr {
 public:
  Mgr(std::shared_ptr<Endpoint> endpoint, const tensorflow::ConfigProto& config, const tensorflow::DeviceMgr* devices,
      std::unique_ptr<tensorflow::DeviceResolverDistributed> resolver,
      std::unique_ptr<tensorflow::CollectiveParamResolverDistributed> params,
      std::unique_ptr<tensorflow::NcclCommunicatorInterface> nccl, tensorflow::WorkerCacheInterface* cache, const std::string& task)
      : RpcCollectiveExecutorMgr(config, devices, std::move(resolver), std::move(params), std::move(nccl), cache, task),
        endpoint_(std::move(endpoint)) {}

 protected:
  tensorflow::CollectiveExecutor* Create(int64_t step) override {
    auto* access = new Access(dev_mgr_, dev_resolver_.get(), work_queue_, worker_cache_, step, task_name_, endpoint_);
    return new tensorflow::BaseCollectiveExecutor(this, access, step, dev_mgr_, work_queue_);
  }

 private:
  const std::shared_ptr<Endpoint> endpoint_;
};

// Tells the step of each RecvBuf, a consumer's recv by gRPC.
class Worker : public tensorflow::GrpcWorker {
 public:
  Worker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config) : GrpcWorker(env, config), env_(env) {}

  void RecvBufAsync(tensorflow::CallOptions* options, const tensorflow::RecvBufRequest* request, tensorflow::RecvBufResponse* response,
                    StatusCallback done) override {
    if (OfCpus(request->src_device(), request->dst_device())) {
      tensorflow::CollectiveExecutor::Handle executor(env_->collective_executor_mgr->FindOrCreate(request->step_id()), true);
      // Mgr creates no other kind.
      static_cast<Access*>(executor.get()->remote_access())->step()->AskedByGrpc(request->buf_rendezvous_key());
    }
    GrpcWorker::RecvBufAsync(options, request, response, std::move(done));
  }

 private:
  tensorflow::WorkerEnv* const env_;
};

}  // namespace

void UseForCollectives(const std::string& task, const std::shared_ptr<Endpoint>& endpoint, tensorflow::GrpcServerOptions* options) {
  options->collective_mgr_func = [task, endpoint](const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* env,
                                                  tensorflow::WorkerCacheInterface* cache) -> tensorflow::CollectiveExecutorMgrInterface* {
    auto nccl = tensorflow::MaybeCreateNcclCommunicator(config);
    auto resolver = std::make_unique<tensorflow::DeviceResolverDistributed>(env->device_mgr);
    auto params = std::make_unique<tensorflow::CollectiveParamResolverDistributed>(config, env->device_mgr, resolver.get(), nccl.get(),
                                                                                  cache, task);
    return new Mgr(endpoint, config, env->device_mgr, std::move(resolver), std::move(params), std::move(nccl), cache, task);
  };
  options->worker_func = [](tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config) -> std::unique_ptr<tensorflow::GrpcWorker> {
    return std::make_unique<Worker>(env, config);
  };
}

}  // namespace sealane_tensorflow
