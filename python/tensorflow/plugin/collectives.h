// TensorFlow's CPU ring collectives, with Sealane between tasks.
#ifndef SEALANE_TENSORFLOW_COLLECTIVES_H_
#define SEALANE_TENSORFLOW_COLLECTIVES_H_

#include <memory>
#include <string>

#include "endpoint.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"

namespace sealane_tensorflow {

// Has the collectives of the server named `task` go by Sealane where they can. Those of other devices than CPUs are unchanged.
void UseForCollectives(const std::string& task, const std::shared_ptr<Endpoint>& endpoint, tensorflow::GrpcServerOptions* options);

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_COLLECTIVES_H_
