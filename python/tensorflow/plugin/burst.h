// Work gathered while earlier work runs.
#ifndef SEALANE_TENSORFLOW_BURST_H_
#define SEALANE_TENSORFLOW_BURST_H_

#include <functional>
#include <memory>

namespace sealane_tensorflow {

// A thread, started by the first call. TensorFlow's executor hands over a thousand tensors one by one: handled on the spot, each would cost
// a record and a wake-up, and keep the executor from its kernels.
class Burst {
 public:
  Burst();
  // Drops calls that were not made yet.
  ~Burst();

  // Calls `what` on the thread.
  void Do(std::function<void()> what);

 private:
  struct State;  // Shared with the thread, which may be the one that deletes this.
  const std::shared_ptr<State> state_;
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_BURST_H_
