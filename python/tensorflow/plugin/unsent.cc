#include "unsent.h"

namespace sealane_tensorflow {

bool Unsent::Add(absl::string_view producer, int64_t step, absl::string_view key, uint8_t number) {
  std::lock_guard lock(mu_);
  Producer& said = producers_[producer];
  Note note(key, number);
  const size_t bytes = BytesOf(note);
  if (said.bytes + bytes > kProducerBytes) {
    producers_.erase(producer);
    any_ = !producers_.empty();
    return false;
  }
  if (said.steps[step].insert(std::move(note)).second) said.bytes += bytes;
  any_ = true;
  return true;
}

bool Unsent::Take(absl::string_view producer, int64_t step, absl::string_view key, uint8_t number) {
  if (!any_) return false;
  std::lock_guard lock(mu_);
  auto said = producers_.find(producer);
  if (said == producers_.end()) return false;
  auto found = said->second.steps.find(step);
  if (found == said->second.steps.end()) return false;
  const Note note(key, number);
  if (found->second.erase(note) == 0) return false;
  said->second.bytes -= BytesOf(note);
  if (found->second.empty()) said->second.steps.erase(found);
  if (said->second.steps.empty()) producers_.erase(said);
  any_ = !producers_.empty();
  return true;
}

void Unsent::Forget(int64_t step) {
  if (!any_) return;
  std::lock_guard lock(mu_);
  for (auto said = producers_.begin(); said != producers_.end();) {
    auto found = said->second.steps.find(step);
    if (found != said->second.steps.end()) {
      for (const Note& note : found->second) said->second.bytes -= BytesOf(note);
      said->second.steps.erase(found);
    }
    // The iterator stays valid: erasing does not move elements of a flat map.
    if (said->second.steps.empty()) {
      producers_.erase(said++);
    } else {
      ++said;
    }
  }
  any_ = !producers_.empty();
}

}  // namespace sealane_tensorflow
