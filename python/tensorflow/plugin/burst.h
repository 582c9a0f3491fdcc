// Work that is gathered while the work before it is being done.
#ifndef SEALANE_TENSORFLOW_BURST_H_
#define SEALANE_TENSORFLOW_BURST_H_

#include <functional>
#include <memory>

namespace sealane_tensorflow {

// A thread, started by the first call. TensorFlow's executor hands over a thousand tensors one by one: done there and then, each would be a
// record and a wake-up of its own, and the executor would be kept from its kernels by it.
class Burst {
 public:
  Burst();
  // What was not called yet is not called.
  ~Burst();

  // Calls `what` on the thread.
  void Do(std::function<void()> what);

 private:
  struct State;  // The thread's too, which may be the one that deletes this.
  const std::shared_ptr<State> state_;
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_BURST_H_
