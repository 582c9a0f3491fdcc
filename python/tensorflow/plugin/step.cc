#include "step.h"

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/logging.h"

namespace sealane_tensorflow {

Step::Step(std::shared_ptr<Endpoint> endpoint, Of of, int64_t id, tensorflow::thread::ThreadPool* pool)
    : endpoint_(std::move(endpoint)), of_(of), id_(id), pool_(pool) {
  endpoint_->Enter(this);
}

std::string Step::BundlesKey(absl::string_view pair, Of of) { return absl::StrCat(pair, of == Of::kRendezvous ? "bundles" : "collectives"); }

bool Step::Fits(absl::string_view key) {
  constexpr size_t kKeyBytes = 4096;  // transport/src/limits.rs
  return DataKey(key, UINT8_MAX).size() <= kKeyBytes;
}

uint8_t Step::NumberOf(absl::string_view key) {
  auto found = numbers_.find(absl::HashOf(key));
  return found == numbers_.end() ? 0 : found->second;
}

void Step::CountOne(absl::string_view key) {
  // Collectives have unboundedly many keys in a step that never ends: see Spoil.
  if (of_ != Of::kRendezvous) return;
  // Eager jobs, too, have steps that never end; their keys never come again.
  constexpr size_t kNumbered = 1 << 20;
  const size_t hash = absl::HashOf(key);
  if (numbers_.size() < kNumbered || numbers_.contains(hash)) ++numbers_[hash];
}

bool Step::ended() {
  std::lock_guard lock(mu_);
  return ended_;
}

void Step::End() {
  std::vector<Sending*> over;
  bool unclean;
  {
    std::lock_guard lock(mu_);
    if (std::exchange(ended_, true)) return;
    unclean = unclean_ || sent_ > 0;
    for (auto& [key, place] : sendings_) {
      for (Sending* sending = place.second; sending != nullptr; sending = std::exchange(sending->next, nullptr)) over.push_back(sending);
    }
    sendings_.clear();
    for (auto& [pair, lane] : send_lanes_) {
      lane->held.clear();
      lane->ready.clear();
      lane->unbundled.clear();
    }
    for (auto& [pair, lane] : ask_lanes_) {
      unclean |= lane->receiving || lane->asked > 0;
      if (lane->bundle != nullptr) sealane_error_free(sealane_call_cancel(lane->bundle));
    }
  }
  // Cleaning up would end sends and recvs of other steps with this id: the last one does it.
  if (endpoint_->Leave(this, unclean)) CleanUp();
  for (Sending* sending : over) {
    sending->Ended(absl::AbortedError("Sealane: the step has ended"));
    Unuse(sending);
  }
}

void Step::CleanUp() {
  if (endpoint_->task() == nullptr) return;
  absl::Status status = Take(sealane_cleanup(endpoint_->task(), id_));
  if (!status.ok()) VLOG(1) << "Sealane: step " << id_ << " was not cleaned up: " << status;
}

void Step::CleanUpIfEnded() {
  if (ended() && endpoint_->Steps(id_).empty()) CleanUp();
}

}  // namespace sealane_tensorflow
