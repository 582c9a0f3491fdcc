// Tensors handed out by the threads that run their consumers.
#ifndef SEALANE_TENSORFLOW_HANDOUTS_H_
#define SEALANE_TENSORFLOW_HANDOUTS_H_

#include <functional>
#include <memory>

#include "tensorflow/core/lib/core/threadpool.h"

namespace sealane_tensorflow {

// From another thread, each of a thousand tensors would wake a thread of the pool. But all threads of a pool may be in kernels that wait
// for these tensors: what the pool has not begun in time runs elsewhere.
class Handouts {
 public:
  Handouts();

  // Calls `what` soon, on a thread of the pool if one is free.
  void Do(tensorflow::thread::ThreadPool* pool, std::function<void()> what);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_HANDOUTS_H_
