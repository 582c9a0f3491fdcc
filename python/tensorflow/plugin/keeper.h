// Delayed calls.
#ifndef SEALANE_TENSORFLOW_KEEPER_H_
#define SEALANE_TENSORFLOW_KEEPER_H_

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "tensorflow/core/platform/env.h"

namespace sealane_tensorflow {

// One thread per process, started on first use, so that importing the plugin starts none. Never ended, like TensorFlow's servers.
class Keeper {
 public:
  static Keeper* Get();

  // Calls `what` after this many milliseconds or somewhat later. Calls run one at a time, so `what` should not block for long.
  void After(int64_t milliseconds, std::function<void()> what);

 private:
  Keeper() = default;
  void Run();

  const pid_t process_ = getpid();
  std::mutex mu_;
  std::condition_variable changed_;
  std::multimap<std::chrono::steady_clock::time_point, std::function<void()>> due_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<tensorflow::Thread> thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_KEEPER_H_
