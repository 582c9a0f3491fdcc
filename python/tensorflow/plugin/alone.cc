#include "alone.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

namespace sealane_tensorflow {

bool AloneSends::Has(absl::string_view key, size_t bytes) {
  if (!any_) return false;
  std::lock_guard lock(mu_);
  auto found = rooms_.find(key);
  return found != rooms_.end() && bytes <= found->second;
}

void AloneSends::Add(absl::string_view key, size_t bytes) {
  std::lock_guard lock(mu_);
  any_ = true;
  auto found = rooms_.find(key);
  if (found != rooms_.end()) {
    found->second = std::max(found->second, bytes);
  } else if (rooms_.size() < kAloneKeys && bytes_ + key.size() <= kAloneBytes) {
    rooms_.emplace(key, bytes);
    bytes_ += key.size();
  }
}

void AloneSends::Clear() {
  std::lock_guard lock(mu_);
  rooms_.clear();
  bytes_ = 0;
}

AloneAsks::Known AloneAsks::Of(absl::string_view key) {
  if (!any_) return {};
  std::lock_guard lock(mu_);
  auto found = known_.find(key);
  return found == known_.end() ? Known() : found->second;
}

size_t AloneAsks::Announced(absl::string_view key, size_t bytes) {
  std::lock_guard lock(mu_);
  auto found = known_.find(key);
  if (found != known_.end()) {
    Known& known = found->second;
    const bool told = std::exchange(known.told, true);
    // Rows that were gathered differ in number from step to step.
    if (bytes > known.room) return known.room = bytes + bytes / 8;
    return told ? 0 : known.room;
  }
  if (known_.size() >= kAloneKeys) return 0;
  if (once_.size() >= kAloneKeys) once_.clear();
  if (once_.insert(absl::HashOf(key)).second) return 0;
  any_ = true;
  known_.emplace(key, Known{bytes, /*agreed=*/false, /*told=*/true});
  return bytes;
}

void AloneAsks::CameAlone(absl::string_view key) {
  std::lock_guard lock(mu_);
  auto found = known_.find(key);
  if (found != known_.end()) found->second.agreed = true;
}

void AloneAsks::NotTold(absl::string_view key) {
  std::lock_guard lock(mu_);
  auto found = known_.find(key);
  if (found != known_.end()) found->second.told = false;
}

void AloneAsks::Doubt() {
  std::lock_guard lock(mu_);
  for (auto& [key, known] : known_) known.agreed = known.told = false;
}

}  // namespace sealane_tensorflow
