// TensorFlow's ring collectives of CPUs, with Sealane between tasks.
#ifndef SEALANE_TENSORFLOW_COLLECTIVES_H_
#define SEALANE_TENSORFLOW_COLLECTIVES_H_

#include <memory>
#include <string>

#include "endpoint.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_server_lib.h"

namespace sealane_tensorflow {

// Has a server's collectives, of the task of that name, go by Sealane where they can. Those of other devices than CPUs go as without.
void UseForCollectives(const std::string& task, const std::shared_ptr<Endpoint>& endpoint, tensorflow::GrpcServerOptions* options);

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_COLLECTIVES_H_
