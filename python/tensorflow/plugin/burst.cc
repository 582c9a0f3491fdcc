#include "burst.h"

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"

namespace sealane_tensorflow {

struct Burst::State {
  void Run();

  std::mutex mu;
  std::condition_variable changed;
  std::vector<std::function<void()>> waiting ABSL_GUARDED_BY(mu);
  bool started ABSL_GUARDED_BY(mu) = false;
  bool asleep ABSL_GUARDED_BY(mu) = false;
  bool over ABSL_GUARDED_BY(mu) = false;
};

Burst::Burst() : state_(std::make_shared<State>()) {}

Burst::~Burst() {
  {
    std::lock_guard lock(state_->mu);
    state_->over = true;
  }
  state_->changed.notify_one();
}

void Burst::Do(std::function<void()> what) {
  bool wake;
  {
    std::lock_guard lock(state_->mu);
    state_->waiting.push_back(std::move(what));
    // Not a TensorFlow thread: older releases cannot detach one.
    if (!std::exchange(state_->started, true)) std::thread([state = state_] { state->Run(); }).detach();
    wake = std::exchange(state_->asleep, false);
  }
  if (wake) state_->changed.notify_one();
}

void Burst::State::Run() {
  pthread_setname_np(pthread_self(), "sealane_burst");
  std::vector<std::function<void()>> now;
  for (;;) {
    now.clear();
    {
      std::unique_lock lock(mu);
      while (waiting.empty() && !over) {
        asleep = true;
        changed.wait(lock);
      }
      if (over) return;
      now.swap(waiting);
    }
    for (auto& what : now) what();
  }
}

}  // namespace sealane_tensorflow
