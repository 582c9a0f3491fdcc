#include "handouts.h"

#include <deque>
#include <mutex>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "keeper.h"
#include "tensorflow/core/platform/env.h"

namespace sealane_tensorflow {

// How long the pool has to begin.
constexpr int64_t kPoolMs = 20;

struct Handouts::State {
  // Runs the first waiting item; false if there is none.
  bool DoOne();

  std::mutex mu;
  std::deque<std::function<void()>> waiting ABSL_GUARDED_BY(mu);
  bool watched ABSL_GUARDED_BY(mu) = false;
};

bool Handouts::State::DoOne() {
  std::function<void()> what;
  {
    std::lock_guard lock(mu);
    if (waiting.empty()) return false;
    what = std::move(waiting.front());
    waiting.pop_front();
  }
  what();
  return true;
}

Handouts::Handouts() : state_(std::make_shared<State>()) {}

void Handouts::Do(tensorflow::thread::ThreadPool* pool, std::function<void()> what) {
  bool watched;
  {
    std::lock_guard lock(state_->mu);
    state_->waiting.push_back(std::move(what));
    watched = std::exchange(state_->watched, true);
  }
  pool->Schedule([state = state_] { state->DoOne(); });
  if (watched) return;
  Keeper::Get()->After(kPoolMs, [state = state_] {
    {
      std::lock_guard lock(state->mu);
      state->watched = false;
      if (state->waiting.empty()) return;
    }
    tensorflow::Env::Default()->SchedClosure([state] {
      while (state->DoOne()) {
      }
    });
  });
}

}  // namespace sealane_tensorflow
