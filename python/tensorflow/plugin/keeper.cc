#include "keeper.h"

#include <unistd.h>

#include <atomic>
#include <utility>

namespace sealane_tensorflow {

using Clock = std::chrono::steady_clock;
using tensorflow::Env;

Keeper* Keeper::Get() {
  // A forked child does not have its parent's thread.
  static std::atomic<Keeper*> keeper{nullptr};
  Keeper* found = keeper.load();
  while (found == nullptr || found->process_ != getpid()) {
    auto made = std::unique_ptr<Keeper>(new Keeper);
    if (keeper.compare_exchange_strong(found, made.get())) found = made.release();
  }
  return found;
}

void Keeper::After(int64_t milliseconds, std::function<void()> what) {
  std::lock_guard lock(mu_);
  due_.emplace(Clock::now() + std::chrono::milliseconds(milliseconds), std::move(what));
  if (thread_ == nullptr) {
    thread_.reset(Env::Default()->StartThread({}, "sealane_keeper", [this] { Run(); }));
  }
  changed_.notify_one();
}

void Keeper::Run() {
  for (;;) {
    std::function<void()> what;
    {
      std::unique_lock lock(mu_);
      while (due_.empty()) changed_.wait(lock);
      const Clock::time_point first = due_.begin()->first;
      if (first > Clock::now()) {
        changed_.wait_until(lock, first);
        continue;
      }
      what = std::move(due_.begin()->second);
      due_.erase(due_.begin());
    }
    what();
  }
}

}  // namespace sealane_tensorflow
