#include "alone.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

namespace sealane_tensorflow {

Form AloneSends::FormOf(absl::string_view key, bool plain, size_t bytes) const {
  auto found = rooms_.find(key);
  if (found == rooms_.end()) return bytes >= kAnnouncedBytes ? Form::kAnnounced : Form::kWhole;
  return plain && bytes <= found->second ? Form::kAlone : Form::kAnnounced;
}

bool AloneSends::Add(absl::string_view key, size_t bytes) {
  auto found = rooms_.find(key);
  if (found != rooms_.end()) {
    found->second = std::max(found->second, bytes);
    return false;
  }
  if (rooms_.size() >= kAloneKeys || bytes_ + key.size() > kAloneBytes) return false;
  rooms_.emplace(key, bytes);
  bytes_ += key.size();
  return true;
}

void AloneSends::Clear() {
  rooms_.clear();
  bytes_ = 0;
}

AloneAsks::Known AloneAsks::Of(absl::string_view key) const {
  auto found = known_.find(key);
  return found == known_.end() ? Known() : found->second;
}

size_t AloneAsks::Announced(absl::string_view key, size_t bytes) {
  auto found = known_.find(key);
  if (found != known_.end()) {
    Known& known = found->second;
    const bool told = std::exchange(known.told, true);
    // Headroom: the number of gathered rows varies from step to step.
    if (bytes > known.room) return known.room = bytes + bytes / 8;
    return told ? 0 : known.room;
  }
  if (known_.size() >= kAloneKeys) return 0;
  if (once_.size() >= kAloneKeys) once_.clear();
  if (once_.insert(absl::HashOf(key)).second) return 0;
  known_.emplace(key, Known{bytes, /*agreed=*/false, /*told=*/true});
  return bytes;
}

void AloneAsks::Agreed(absl::string_view key, uint64_t hello) {
  auto found = known_.find(key);
  if (found != known_.end() && hello == hello_) found->second.agreed = true;
}

void AloneAsks::NotTold(absl::string_view key) {
  auto found = known_.find(key);
  if (found != known_.end()) found->second.told = false;
}

void AloneAsks::Doubt(uint64_t hello) {
  hello_ = hello;
  for (auto& [key, known] : known_) known.agreed = known.told = false;
}

bool AloneWait::Begin(size_t room) {
  if (std::exchange(started_, true)) return false;
  asked_ = room;
  return true;
}

AloneWait::Do AloneWait::Announced(size_t bytes) {
  announced_ = bytes;
  if (came_) return Do::kFinish;
  if (started_) return Do::kNothing;  // Already asked for, with the size known from an earlier step.
  Begin(bytes);
  return Do::kAsk;
}

AloneWait::Do AloneWait::CameBare() {
  came_ = true;
  return announced_.has_value() ? Do::kFinish : Do::kAwait;
}

AloneWait::Do AloneWait::TooShort(size_t room) {
  const size_t bytes = announced_.value_or(room);
  if (bytes > asked_) {
    asked_ = bytes;
    return Do::kAsk;
  }
  if (announced_.has_value()) return Do::kGrpc;
  started_ = false;  // Until a bundle gives the size.
  return Do::kAwait;
}

}  // namespace sealane_tensorflow
