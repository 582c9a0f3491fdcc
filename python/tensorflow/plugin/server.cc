#include "server.h"

#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "collectives.h"
#include "memory.h"
#include "rendezvous.h"
#include "tensorflow/core/platform/env.h"

namespace sealane_tensorflow {
namespace {


struct Servers {
  std::mutex mu;
  std::vector<std::weak_ptr<Endpoint>> endpoints ABSL_GUARDED_BY(mu);
  static Servers* Get() {
    static auto* servers = new Servers;
    return servers;
  }
};

bool IsOff() {
  const char* text = std::getenv("SEALANE_TF");
  return text != nullptr && absl::string_view(text) == "off";
}

std::string AddressOf(const tensorflow::ServerDef& def) {
  for (const auto& job : def.cluster().job()) {
    if (job.name() != def.job_name()) continue;
    auto found = job.tasks().find(def.task_index());
    if (found != job.tasks().end()) return found->second;
  }
  return "";
}

}  // namespace

absl::Status Server::Init(const tensorflow::ServerDef& def, tensorflow::DeviceMgr* devices) {
  // Checked before making devices, which abort the process on an invalid task index.
  std::string host;
  int port;
  TF_RETURN_IF_ERROR(GetHostAndPort(def, &host, &port));
  const std::string name = absl::StrCat("/job:", def.job_name(), "/replica:0/task:", def.task_index());
  endpoint_ = Endpoint::Make(name, AddressOf(def), [this](uint64_t incarnation) {
    return worker_env()->device_mgr->ContainsDevice(static_cast<int64_t>(incarnation));
  });
  endpoint_->book().Learn(def.cluster());
  if (devices == nullptr) {
    TF_RETURN_IF_ERROR(MakeDevices(def.default_session_config(), name, endpoint_->arena(), &devices_));
    devices = devices_.get();
  }
  tensorflow::GrpcServerOptions options;
  options.local_device_mgr = devices;
  options.rendezvous_mgr_func = [endpoint = endpoint_](const tensorflow::WorkerEnv* env) { return new RendezvousMgr(env, endpoint); };
  UseForCollectives(name, endpoint_, &options);
  // gRPC first: it reports bad addresses, and has the port to itself.
  TF_RETURN_IF_ERROR(GrpcServer::Init(options));
  endpoint_->Attach();
  std::lock_guard lock(Servers::Get()->mu);
  Servers::Get()->endpoints.push_back(endpoint_);
  return absl::OkStatus();
}

Server::~Server() {
  if (endpoint_ != nullptr) endpoint_->Close();
}

absl::Status Server::UpdateServerDef(const tensorflow::ServerDef& def) {
  endpoint_->book().Learn(def.cluster());
  return GrpcServer::UpdateServerDef(def);
}

absl::Status Server::WorkerCacheFactory(const tensorflow::WorkerCacheFactoryOptions& options,
                                        tensorflow::WorkerCacheInterface** cache) {
  endpoint_->book().Learn(options.cluster_def);
  return GrpcServer::WorkerCacheFactory(options, cache);
}

bool Factory::AcceptsOptions(const tensorflow::ServerDef& def) { return def.protocol() == "grpc+sealane" || def.protocol() == "grpc++"; }

absl::Status Factory::NewServer(const tensorflow::ServerDef& def, const Options& options,
                                std::unique_ptr<tensorflow::ServerInterface>* server) {
  if (IsOff()) {
    return tensorflow::GrpcServer::Create(def, tensorflow::Env::Default(), options.local_device_mgr, server);
  }
  auto made = std::make_unique<Server>(def, tensorflow::Env::Default());
  TF_RETURN_IF_ERROR(made->Init(def, options.local_device_mgr));
  *server = std::move(made);
  return absl::OkStatus();
}

std::string Report() {
  std::vector<std::string> reports;
  std::lock_guard lock(Servers::Get()->mu);
  for (const auto& each : Servers::Get()->endpoints)
    if (auto endpoint = each.lock()) reports.push_back(endpoint->Report());
  return absl::StrCat("{\"servers\":[", absl::StrJoin(reports, ","), "]}");
}

}  // namespace sealane_tensorflow
