// TensorFlow's gRPC server, with Sealane for the tensors between tasks.
#ifndef SEALANE_TENSORFLOW_SERVER_H_
#define SEALANE_TENSORFLOW_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "endpoint.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"
#include "tensorflow/core/distributed_runtime/server_lib.h"

namespace sealane_tensorflow {

// Outlives the base class GrpcServer, whose destructor still uses it.
struct Devices {
  std::unique_ptr<tensorflow::DeviceMgr> devices_;
};

class Server : private Devices, public tensorflow::GrpcServer {
 public:
  Server(const tensorflow::ServerDef& def, tensorflow::Env* env) : GrpcServer(def, env) {}
  ~Server() override;

  absl::Status Init(const tensorflow::ServerDef& def, tensorflow::DeviceMgr* devices);

  absl::Status UpdateServerDef(const tensorflow::ServerDef& def) override;

 protected:
  absl::Status WorkerCacheFactory(const tensorflow::WorkerCacheFactoryOptions& options,
                                  tensorflow::WorkerCacheInterface** cache) override;

 private:
  std::shared_ptr<Endpoint> endpoint_;
};

// For the protocols grpc+sealane and grpc++, as DeepRec's scripts call it.
class Factory : public tensorflow::ServerFactory {
 public:
  bool AcceptsOptions(const tensorflow::ServerDef& def) override;
  absl::Status NewServer(const tensorflow::ServerDef& def, const Options& options,
                         std::unique_ptr<tensorflow::ServerInterface>* server) override;
};

// {"servers": [...]}: of all servers of this process.
std::string Report();

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_SERVER_H_
