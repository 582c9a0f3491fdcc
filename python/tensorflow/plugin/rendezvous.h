// TensorFlow's rendezvous of a step, with Sealane between tasks.
#ifndef SEALANE_TENSORFLOW_RENDEZVOUS_H_
#define SEALANE_TENSORFLOW_RENDEZVOUS_H_

#include <memory>

#include "endpoint.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"

namespace sealane_tensorflow {

class RendezvousMgr : public tensorflow::BaseRendezvousMgr {
 public:
  RendezvousMgr(const tensorflow::WorkerEnv* env, std::shared_ptr<Endpoint> endpoint)
      : BaseRendezvousMgr(env), endpoint_(std::move(endpoint)) {}

  // A consumer's recv by gRPC.
  void RecvLocalAsync(int64_t step, const tensorflow::Rendezvous::ParsedKey& key, tensorflow::Rendezvous::DoneCallback done) override;
  void Cleanup(int64_t step) override;
  // Keeps BaseRendezvousMgr's visible to its callers.
  using BaseRendezvousMgr::RecvLocal;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(int64_t step, const tensorflow::WorkerEnv* env) override;

 private:
  const std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_RENDEZVOUS_H_
