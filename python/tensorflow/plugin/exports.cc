// What Python calls, and what happens when the plugin is loaded.
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

// The release of TensorFlow that this was built for. Valid for ever.
EXPORTED const char* sealane_tensorflow_version() { return SEALANE_TENSORFLOW_VERSION; }

// What the servers of this process have sent and received, by which way and with whom, as JSON; to be freed with free().
EXPORTED char* sealane_tensorflow_report() { return strdup(sealane_tensorflow::Report().c_str()); }
