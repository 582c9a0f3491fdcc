#include "rendezvous.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/notification.h"
#include "step.h"
#include "tensorflow/core/common_runtime/copy_tensor.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace sealane_tensorflow {
namespace {

using tensorflow::BaseRecvTensorCall;
using tensorflow::Device;
using tensorflow::Tensor;
using ParsedKey = tensorflow::Rendezvous::ParsedKey;
using Args = tensorflow::Rendezvous::Args;
using DoneCallback = tensorflow::Rendezvous::DoneCallback;

bool OnHost(const tensorflow::DeviceNameUtils::ParsedName& device, const tensorflow::AllocatorAttributes& attributes) {
  return attributes.on_host() || device.type == tensorflow::DEVICE_CPU;
}

// Parses a key that was parsed before: a ParsedKey owns strings, so rare uses do not keep one.
ParsedKey Parsed(const std::string& key) {
  ParsedKey parsed;
  TF_CHECK_OK(tensorflow::Rendezvous::ParseKey(key, &parsed));
  return parsed;
}

absl::Status NoMemory(absl::string_view key, size_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("no memory for a tensor of ", bytes, " bytes: ", key));
}

class Rendezvous : public tensorflow::BaseRemoteRendezvous {
 public:
  Rendezvous(const tensorflow::WorkerEnv* env, int64_t id, std::shared_ptr<Endpoint> endpoint)
      : BaseRemoteRendezvous(env, id), step_(new Step(std::move(endpoint), Step::Of::kRendezvous, id, env->compute_pool)) {}

  absl::Status Send(const ParsedKey& key, const Args& args, const Tensor& tensor, bool dead) override;
  void StartAbort(const absl::Status& status) override;

  absl::Status SendByGrpc(const ParsedKey& key, const Args& args, const Tensor& tensor, bool dead) {
    return BaseRemoteRendezvous::Send(key, args, tensor, dead);
  }
  // `over`, unless null, is called when the call has ended.
  void AskByGrpc(const ParsedKey& key, const Args& args, Device* device, DoneCallback done, std::function<void()> over);
  absl::Status FindDevice(absl::string_view name, Device** device);

  using BaseRemoteRendezvous::DeregisterCall;
  Step* step() { return step_; }

 protected:
  void RecvFromRemoteAsync(const ParsedKey& key, const Args& args, DoneCallback done) override;

 private:
  ~Rendezvous() override {
    step_->End();
    step_->Unref();
  }

  Step* const step_;
};

absl::Status Rendezvous::FindDevice(absl::string_view name, Device** device) {
  return session()->device_mgr()->LookupDevice(name, device);
}

// --- Sending ----------------------------------------------------------------------------------------------------------------------------

// Holds the rendezvous, as items waiting in TensorFlow's own do.
class RendezvousSending : public Sending {
 public:
  RendezvousSending(Rendezvous* rendezvous, const ParsedKey& key, const Args& args, const Tensor& tensor, bool dead)
      : Sending(key.FullKey(), tensor, dead), rendezvous_(rendezvous), args_(args) {
    if (!dead && args.device_context != nullptr && !OnHost(key.src, args.alloc_attrs)) {
      found_ = rendezvous->FindDevice(key.src_device, &device_);
      endpoint_ = rendezvous->step()->endpoint();
    }
    rendezvous_->Ref();
    if (args_.device_context != nullptr) args_.device_context->Ref();
  }
  ~RendezvousSending() override {
    if (args_.device_context != nullptr) args_.device_context->Unref();
  }

  void Stage(std::function<void(const absl::Status&)> done) override;

  void LeaveForGrpc() override {
    // Fails if the step was aborted, which the consumer learns from the rendezvous.
    rendezvous_->SendByGrpc(Parsed(key), args_, original_.value_or(tensor), dead).IgnoreError();
  }

  void Ended(const absl::Status&) override { rendezvous_->Unref(); }

 private:
  Rendezvous* const rendezvous_;
  const Args args_;
  // The tensor's device, unless it is on the host, and whose arena it is copied to. Found early: at staging, the step may have ended and
  // the rendezvous be gone.
  Device* device_ = nullptr;
  std::shared_ptr<Endpoint> endpoint_;
  absl::Status found_;
  std::optional<Tensor> original_;  // On the device; `tensor` is the host copy.
};

void RendezvousSending::Stage(std::function<void(const absl::Status&)> done) {
  if (device_ == nullptr) return done(found_);
  tensorflow::AllocatorAttributes host;
  host.set_on_host(true);
  host.set_gpu_compatible(true);
  // The arena, if the device copies there as fast: it is sent from there without another copy.
  ArenaAllocator* arena = endpoint_->arena();
  tensorflow::Allocator* allocator = device_->GetAllocator(host);
  if (arena->Pinned(device_->parsed_name().id)) allocator = arena;
  original_ = tensor;
  tensor = Tensor(allocator, original_->dtype(), original_->shape());
  if (!tensor.IsInitialized()) return done(NoMemory(key, original_->TotalBytes()));
  // Lists are on the host; this copies their elements.
  CopyDeviceToHost(&*original_, allocator, allocator, key, device_, &tensor, args_.device_context, std::move(done));
}

absl::Status Rendezvous::Send(const ParsedKey& key, const Args& args, const Tensor& tensor, bool dead) {
  if (!key.dst.has_job || tensorflow::DeviceNameUtils::IsSameAddressSpace(key.src, key.dst) || step_->ended()) {
    return BaseRemoteRendezvous::Send(key, args, tensor, dead);
  }
  step_->Send(PairOf(key), [&] { return step_->endpoint()->book().Find(key.dst); },
              std::make_unique<RendezvousSending>(this, key, args, tensor, dead));
  return absl::OkStatus();
}

void Rendezvous::StartAbort(const absl::Status& status) {
  BaseRemoteRendezvous::StartAbort(status);  // Cancels pending recvs.
  if (!step_->ended()) step_->endpoint()->TellAborted(*step_, status);
  step_->End();
}

// --- Asking -----------------------------------------------------------------------------------------------------------------------------

// A recv by gRPC, as without Sealane.
class GrpcCall : public BaseRecvTensorCall {
 public:
  void Start(std::function<void()> done) override {
    response.InitAlloc(device, args.alloc_attrs);
    // The callback may run before RecvTensorAsync returns, and deletes this: it waits until the check below is done.
    auto looked = std::make_shared<absl::Notification>();
    worker->RecvTensorAsync(&options, &request, &response, [this, looked, done = std::move(done)](const absl::Status& status) {
      looked->WaitForNotification();
      Fail(status);
      done();
    });
    if (!status().ok()) options.StartCancel();  // Aborted before there was a call to cancel.
    looked->Notify();
  }
  void StartAbort(const absl::Status& status) override {
    Fail(status);
    options.StartCancel();
  }
  absl::Status status() const override {
    std::lock_guard lock(mu_);
    return status_;
  }
  void Fail(const absl::Status& status) {
    std::lock_guard lock(mu_);
    status_.Update(status);
  }

  std::string worker_name;
  std::shared_ptr<tensorflow::WorkerCacheInterface> cache;
  tensorflow::WorkerInterface* worker = nullptr;
  Device* device = nullptr;
  Args args;
  tensorflow::CallOptions options;
  tensorflow::RecvTensorRequest request;
  tensorflow::TensorResponse response;
  Peer* peer = nullptr;

 private:
  mutable std::mutex mu_;
  absl::Status status_;
};

void Rendezvous::AskByGrpc(const ParsedKey& key, const Args& args, Device* device, DoneCallback done, std::function<void()> over) {
  auto call = std::make_unique<GrpcCall>();
  std::string unused;
  call->args = args;
  call->device = device;
  call->peer = step_->endpoint()->book().Find(key.src);
  call->cache = session()->GetSharedWorkerCache();
  absl::Status status;
  if (!tensorflow::DeviceNameUtils::SplitDeviceName(key.src_device, &call->worker_name, &unused)) {
    status = absl::InternalError(absl::StrCat("not a device of a worker: ", key.src_device));
  } else if ((call->worker = call->cache->GetOrCreateWorker(call->worker_name)) == nullptr) {
    status = absl::InternalError(absl::StrCat("No worker known as ", call->worker_name));
  }
  if (!status.ok()) {
    if (over) over();
    return done(status, Args(), args, Tensor(), false);
  }
  call->request.set_step_id(step_id_);
  call->request.set_rendezvous_key(std::string(key.FullKey()));
  call->request.set_request_id(tensorflow::GetUniqueRequestId());
  RegisterCall(call.get(), args);
  Ref();
  GrpcCall* started = call.release();
  auto ended = [this, started, done = std::move(done), over = std::move(over)] {
    std::unique_ptr<GrpcCall> call(started);
    if (over) over();
    DeregisterCall(started, call->args);
    const absl::Status status = call->status();
    const Tensor& tensor = call->response.tensor();
    if (status.ok()) step_->endpoint()->ReceivedByGrpc(call->peer, tensor.TotalBytes());
    done(status, Args(), call->args, tensor, call->response.metadata().is_dead());
    call->cache->ReleaseWorker(call->worker_name, call->worker);
    Unref();
  };
  if (started->status().ok()) {
    started->Start(std::move(ended));
  } else {
    ended();
  }
}

// A recv by Sealane.
class RendezvousAsking : public Asking, public BaseRecvTensorCall {
 public:
  RendezvousAsking(Rendezvous* rendezvous, const ParsedKey& key, const Args& args, Device* device, DoneCallback done)
      : Asking(key.FullKey()),
        rendezvous_(rendezvous),
        args_(args),
        on_host_(OnHost(key.dst, args.alloc_attrs)),
        device_(device),
        done_(std::move(done)) {
    rendezvous_->Ref();
  }

  void Start(std::function<void()>) override {}  // Step::Ask starts it.
  void StartAbort(const absl::Status& status) override {
    {
      std::lock_guard lock(mu_);
      status_.Update(status);
    }
    Cancel(status);
  }
  absl::Status status() const override {
    std::lock_guard lock(mu_);
    return status_;
  }

  void Received(const absl::Status& status, const Incoming& incoming, sealane_tensor* came) override;

  void AskByGrpc(std::function<void()> over) override {
    rendezvous_->DeregisterCall(this, args_);
    rendezvous_->AskByGrpc(Parsed(key), args_, device_, std::move(done_), std::move(over));
  }

 private:
  ~RendezvousAsking() override { rendezvous_->Unref(); }

  absl::Status Parse(const Incoming& incoming, tensorflow::TensorProto* proto);
  // Makes the tensor in host memory. Takes ownership of `came`.
  absl::Status Make(const Incoming& incoming, sealane_tensor* came, Tensor* tensor);
  // Makes the tensor on the device from a TensorProto.
  void MakeOnDevice(std::shared_ptr<const tensorflow::TensorProto> proto);
  void End(const absl::Status& status, const Tensor& tensor, bool dead) {
    DoneCallback done = std::move(done_);
    done(status, Args(), args_, tensor, dead);
  }

  Rendezvous* const rendezvous_;
  const Args args_;
  const bool on_host_;
  Device* const device_;
  DoneCallback done_;
  mutable std::mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

absl::Status RendezvousAsking::Parse(const Incoming& incoming, tensorflow::TensorProto* proto) {
  if (incoming.bytes <= INT_MAX && proto->ParseFromArray(incoming.data, static_cast<int>(incoming.bytes))) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("Sealane: a peer's tensor was refused: it is no TensorProto: ", key));
}

void RendezvousAsking::MakeOnDevice(std::shared_ptr<const tensorflow::TensorProto> proto) {
  Ref();
  // MakeTensorFromProto waits for the copy, which must not hold up other arrivals.
  tensorflow::Env::Default()->SchedClosure([this, proto] {
    Tensor tensor;
    const absl::Status status = device_->MakeTensorFromProto(*proto, args_.alloc_attrs, &tensor);  // Validates the proto.
    End(status, tensor, false);
    Unref();
  });
}

absl::Status RendezvousAsking::Make(const Incoming& incoming, sealane_tensor* came, Tensor* tensor) {
  tensorflow::AllocatorAttributes attributes = args_.alloc_attrs;
  if (!on_host_) {
    attributes.set_on_host(true);
    attributes.set_gpu_compatible(true);
  }
  absl::Status status;
  if (incoming.dead) {
    *tensor = Tensor();
  } else if (incoming.type == tensorflow::DT_INVALID) {
    tensorflow::TensorProto proto;
    status = Parse(incoming, &proto);
    if (status.ok()) status = device_->MakeTensorFromProto(proto, args_.alloc_attrs, tensor);  // Validates the proto.
  } else if (rendezvous_->step()->endpoint()->arena()->Keep(came, incoming.type, incoming.shape, incoming.data, incoming.bytes, tensor)) {
    came = nullptr;
  } else {
    *tensor = Tensor(device_->GetAllocator(attributes), incoming.type, incoming.shape);
    if (!tensor->IsInitialized()) {
      status = NoMemory(key, incoming.bytes);
    } else if (incoming.bytes > 0) {
      std::memcpy(tensor->data(), incoming.data, incoming.bytes);
    }
  }
  sealane_tensor_free(came);
  return status;
}

void RendezvousAsking::Received(const absl::Status& received, const Incoming& incoming, sealane_tensor* came) {
  rendezvous_->DeregisterCall(this, args_);
  auto tensor = std::make_unique<Tensor>();
  absl::Status status = received;
  const bool dead = incoming.dead;
  if (status.ok() && !dead && !on_host_ && incoming.type == tensorflow::DT_INVALID) {
    auto proto = std::make_shared<tensorflow::TensorProto>();
    status = Parse(incoming, proto.get());
    sealane_tensor_free(came);
    if (status.ok()) return MakeOnDevice(std::move(proto));
  } else if (status.ok()) {
    status = Make(incoming, came, tensor.get());
  } else {
    sealane_tensor_free(came);
  }
  if (!status.ok() || dead || args_.device_context == nullptr || on_host_) return End(status, *tensor, dead);
  // To the device, as TensorFlow does with tensors of other tasks.
  auto on_device = std::make_unique<Tensor>(device_->GetAllocator(args_.alloc_attrs), tensor->dtype(), tensor->shape());
  if (!on_device->IsInitialized()) return End(NoMemory(key, incoming.bytes), Tensor(), false);
  Ref();
  Tensor *from = tensor.release(), *to = on_device.release();
  args_.device_context->CopyCPUTensorToDevice(from, device_, to, [this, from, to](const absl::Status& copied) {
    End(copied, *to, false);
    delete from;
    delete to;
    Unref();
  });
}

void Rendezvous::RecvFromRemoteAsync(const ParsedKey& key, const Args& args, DoneCallback done) {
  Device* device = nullptr;
  absl::Status status = FindDevice(key.dst_device, &device);
  if (!status.ok()) return done(status, Args(), args, Tensor(), false);
  auto* asking = new RendezvousAsking(this, key, args, device, std::move(done));
  RegisterCall(asking, args);
  step_->Ask(PairOf(key), [&] { return step_->endpoint()->book().Find(key.src); }, asking);
}

}  // namespace

void RendezvousMgr::RecvLocalAsync(int64_t step, const ParsedKey& key, DoneCallback done) {
  tsl::core::RefCountPtr<tensorflow::RemoteRendezvous> found = Find(step);
  auto* rendezvous = static_cast<Rendezvous*>(found.get());
  Peer* peer = endpoint_->book().Find(key.dst);
  rendezvous->step()->AskedByGrpc(key.FullKey());
  rendezvous->RecvLocalAsync(key, [endpoint = endpoint_, peer, done = std::move(done)](const absl::Status& status, const Args& send_args, const Args& recv_args,
                                                                 const Tensor& tensor, bool dead) {
    if (status.ok()) endpoint->SentByGrpc(peer, tensor.TotalBytes());
    done(status, send_args, recv_args, tensor, dead);
  });
}

void RendezvousMgr::Cleanup(int64_t step) {
  // A send that its consumer has, but that has not completed here yet, keeps the rendezvous: it must not be aborted for that.
  for (auto& each : endpoint_->Steps(step))
    if (each->of() == Step::Of::kRendezvous) each->End();
  BaseRendezvousMgr::Cleanup(step);
}

tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> RendezvousMgr::Create(int64_t step, const tensorflow::WorkerEnv* env) {
  return tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous>(new Rendezvous(env, step, endpoint_));
}

}  // namespace sealane_tensorflow
