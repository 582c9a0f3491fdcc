// Bundles that a step receives, and their entries.
#include <utility>

#include "absl/strings/str_cat.h"
#include "keeper.h"
#include "step.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/status.h"

namespace sealane_tensorflow {

// Limit on what may come unasked from one device in a step, so that a peer cannot fill this task's memory.
constexpr size_t kParkedBytes = 64 << 20;

// How often, and after how long, a bundle is asked for again while it is unknown whether gRPC would do.
constexpr int kPostponed = 50;
constexpr int64_t kPostponeMs = 20;

struct Step::Receiving {
  Step* step;
  AskLane* lane;
};

void Step::Receive(AskLane* lane) {
  std::string from;
  uint64_t received;
  bool refused;
  {
    std::lock_guard lock(mu_);
    if (ended_ || lane->receiving) return;
    if (!lane->refused && (lane->awaited == 0 || (lane->blind > 0 && !lane->spoiled))) return;
    lane->receiving = true;
    from = lane->from;
    received = lane->received;
    refused = lane->refused;
  }
  Ref();
  tensorflow::core::ScopedUnref unref(this);
  if (refused) return BundleCame(lane, absl::CancelledError("refused"), nullptr, /*asked=*/false);
  void* memory = nullptr;
  absl::Status status = endpoint_->arena()->AllocateShared(kBundleBytes, &memory);
  if (!status.ok()) {
    LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: tensors from " << lane->route->peer->name << " come by gRPC: " << status.message();
    return BundleCame(lane, status, nullptr, /*asked=*/false);
  }
  auto receiving = std::make_unique<Receiving>(Receiving{this, lane});
  const sealane_wanted wanted = {TextOf(lane->bundles), {memory, kBundleBytes, sealane_free, memory}, receiving.get()};
  sealane_call* call = nullptr;
  Ref();  // The callback's.
  status = Take(sealane_recv_all(endpoint_->task(), TextOf(from), id_, &wanted, 1, SEALANE_NO_TIMEOUT, ReceiveDone, &call));
  if (status.ok()) {
    receiving.release();
  } else {  // No callback comes.
    Unref();
    sealane_free(memory);
    return BundleCame(lane, status, nullptr, /*asked=*/false);
  }
  std::lock_guard lock(mu_);
  if (lane->received != received) {
    sealane_call_free(call);
  } else {
    lane->bundle = call;
    if (ended_ || lane->refused || (lane->spoiled && lane->awaited == 0)) sealane_error_free(sealane_call_cancel(call));
  }
}

void Step::ReceiveDone(void* context, const sealane_error* error, sealane_tensor* came) {
  std::unique_ptr<Receiving> receiving(static_cast<Receiving*>(context));
  receiving->step->BundleCame(receiving->lane, StatusOf(error), came, /*asked=*/true);
  receiving->step->Unref();
}

// From this many tensors on, the pool that runs their consumers hands them out: else its threads would be woken for each.
constexpr size_t kPooled = 8;

void Step::BundleCame(AskLane* lane, absl::Status status, sealane_tensor* came, bool asked) {
  std::vector<Arrival> arrivals;
  std::vector<std::pair<Asking*, Arrival>> matched;
  std::vector<Asking*> lost;
  if (status.ok()) status = ReadBundle(sealane_tensor_view(came), &arrivals);
  sealane_call* call;
  bool refused, by_grpc, settle = false, postpone = false;
  {
    std::lock_guard lock(mu_);
    lane->receiving = false;
    ++lane->received;
    call = std::exchange(lane->bundle, nullptr);
    if (status.ok() && !Match(lane, arrivals, &matched)) {
      status = absl::ResourceExhaustedError(absl::StrCat("Sealane: more than ", kParkedBytes, " bytes came unasked"));
    }
    refused = std::exchange(lane->refused, false);
    // No room, or another call of the same key has not quite ended.
    by_grpc = refused || (came == nullptr && (absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status)));
    // This task's daemon is away: nothing has come, and the producer still has everything.
    if (!asked && absl::IsUnavailable(status)) by_grpc = true;
    // Some of its entries may be lost, no matter who asks for them.
    if (!status.ok() && !by_grpc && !absl::IsCancelled(status)) aborted_by_.try_emplace(lane->from, status);
    if (!status.ok() || refused) {
      for (auto& [key, asking] : askings_) {
        if (asking->lane != lane || asking->entry != Asking::Entry::kAwaited) continue;
        if (by_grpc) {
          std::lock_guard asking_lock(asking->mu);
          // It may have come alone, and be gone from its producer: the bundle is asked for again.
          if (asking->wait.started() && !asking->data.ended && lane->postponed < kPostponed) {
            postpone = true;
            asking->entry = Asking::Entry::kNone;
            --lane->awaited;
            continue;
          }
          ++lane->blind;
        }
        lost.push_back(asking);
        asking->Ref();
      }
    }
    if (refused) settle = !lane->unsettled.empty() && !std::exchange(lane->settling, true);
    lane->postponed = postpone ? lane->postponed + 1 : 0;
    if (lane->asked == 0 && lane->parked.empty()) lane->by_sealane = false;
  }
  sealane_call_free(call);
  // The next bundle travels while this one's tensors are made. After an error, the next recv asks for it.
  if (status.ok() && !refused) Receive(lane);
  const bool many = matched.size() >= kPooled && pool_ != nullptr;
  auto hand_out = [this, matched = std::move(matched), came] {
    for (auto& [asking, arrival] : matched) {
      Arrived(asking, arrival);
      asking->Unref();
    }
    sealane_tensor_free(came);
    Unref();
  };
  Ref();
  if (many) {
    endpoint_->handouts().Do(pool_, std::move(hand_out));
  } else {
    hand_out();
  }
  if (!asked && absl::IsUnavailable(status)) endpoint_->routes().Lost(lane->route, status.message());
  // Derived, as the producer reports the original error.
  if (absl::IsCancelled(status) || absl::IsAborted(status)) status = tensorflow::StatusGroup::MakeDerived(status);
  for (Asking* asking : lost) {
    if (by_grpc) {
      EndByGrpc(asking, /*blind=*/true);
    } else {
      EndWith(asking, status);
    }
    asking->Unref();
  }
  if (settle) Settle(lane);
  StartUnsettledIfSpoiled(lane);
  if (postpone) Postpone(lane);
}

void Step::Postpone(AskLane* lane) {
  Ref();
  Keeper::Get()->After(kPostponeMs, [this, lane] {
    // Not on the keeper's thread: this may start gRPC calls.
    tensorflow::Env::Default()->SchedClosure([this, lane] {
      AwaitAll(lane);
      Unref();
    });
  });
}

bool Step::Takes(Asking* asking, uint8_t number) {
  if (asking->entry == Asking::Entry::kAwaited) return asking->number == number;
  // Another recv awaits bundles, and they bring this one's entry too.
  std::lock_guard lock(asking->mu);
  return asking->begun && asking->entry == Asking::Entry::kNone && asking->number == number;
}

bool Step::Match(AskLane* lane, const std::vector<Arrival>& arrivals, std::vector<std::pair<Asking*, Arrival>>* matched) {
  for (const Arrival& arrival : arrivals) {
    auto found = askings_.find(arrival.key);
    if (found != askings_.end() && found->second->lane == lane && Takes(found->second, arrival.number)) {
      if (std::exchange(found->second->entry, Asking::Entry::kCame) == Asking::Entry::kAwaited) --lane->awaited;
      found->second->Ref();
      matched->emplace_back(found->second, arrival);
      continue;
    }
    Parked parked(arrival);
    lane->parked_bytes += parked.bytes();
    if (lane->parked_bytes > kParkedBytes) return false;
    lane->parked[arrival.key].push_back(std::move(parked));
  }
  return true;
}

void Step::Arrived(Asking* asking, const Arrival& arrival) {
  Incoming incoming;
  absl::Status status = Read(arrival.view, &incoming);
  if (!arrival.announced || !status.ok()) return EndWith(asking, status, incoming);
  sealane_tensor* came;
  AloneWait::Do next;
  {
    std::lock_guard lock(asking->mu);
    if (asking->ended) return;
    asking->announced = incoming;
    next = asking->wait.Announced(arrival.view.bytes);
    came = std::exchange(asking->came, nullptr);
  }
  if (next == AloneWait::Do::kFinish) return DataCame(asking, absl::OkStatus(), came);
  if (next == AloneWait::Do::kAsk) AskForData(asking, arrival.view.bytes);
}

}  // namespace sealane_tensorflow
