// The functions that Python calls, and the registration on load.
#include <cstring>

#include "server.h"

#ifndef SEALANE_TENSORFLOW_VERSION
#error "the build says which release of TensorFlow this is for: -DSEALANE_TENSORFLOW_VERSION=\"2.21.0\""
#endif

namespace {

const bool registered = [] {
  tensorflow::ServerFactory::Register("SEALANE_SERVER", new sealane_tensorflow::Factory);
  return true;
}();

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

// The TensorFlow release this was built for; valid forever.
EXPORTED const char* sealane_tensorflow_version() { return SEALANE_TENSORFLOW_VERSION; }

// Traffic of this process's servers by transport and peer, as JSON; release with free().
EXPORTED char* sealane_tensorflow_report() { return strdup(sealane_tensorflow::Report().c_str()); }
