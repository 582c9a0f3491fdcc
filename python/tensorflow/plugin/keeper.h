// Things to be done later.
#ifndef SEALANE_TENSORFLOW_KEEPER_H_
#define SEALANE_TENSORFLOW_KEEPER_H_

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "tensorflow/core/platform/env.h"

namespace sealane_tensorflow {

// One thread of the process, started when it is first needed, so that importing the plugin starts none. Never ended, as TensorFlow's servers
// are not either.
class Keeper {
 public:
  static Keeper* Get();

  // Calls `what` after so many milliseconds, or somewhat later: one after the other, so it should not wait long.
  void After(int64_t milliseconds, std::function<void()> what);

 private:
  Keeper() = default;
  void Run();

  const pid_t process_ = getpid();
  std::mutex mu_;
  std::condition_variable changed_;
  std::multimap<uint64_t, std::function<void()>> due_ ABSL_GUARDED_BY(mu_);  // By microseconds of the environment's clock.
  std::unique_ptr<tensorflow::Thread> thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_KEEPER_H_
