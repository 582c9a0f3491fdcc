#include <algorithm>

#include "absl/strings/str_cat.h"
#include "step.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/status.h"

namespace sealane_tensorflow {
namespace {

// Words a peer's error as TensorFlow's gRPC client does: coordinators tell by that text whether a parameter server or a worker failed
// (_RPC_ERROR_FROM_PS in cluster_coordinator.py), and else wait forever for a healthy worker.
absl::Status ErrorFrom(const Peer& peer, absl::Status status) {
  tensorflow::errors::AppendToMessage(&status, "Additional GRPC error information from remote target ", peer.name,
                                      ": none, its tensors go by Sealane");
  return status;
}

}  // namespace

Step::AskLane* Step::LaneOfAsk(absl::string_view pair, const PeerOf& peer) {
  auto found = ask_lanes_.find(pair);
  if (found != ask_lanes_.end()) return found->second.get();
  AskRoute* route = endpoint_->routes().OfAsk(pair, peer);
  if (route == nullptr) return nullptr;
  auto lane = std::make_unique<AskLane>();
  lane->route = route;
  lane->bundles = BundlesKey(pair, of_);
  return ask_lanes_.emplace(std::string(pair), std::move(lane)).first->second.get();
}

void Step::Ask(absl::string_view pair, const PeerOf& peer, Asking* asking) {
  AskLane* lane = nullptr;
  if (Fits(asking->key)) {
    std::lock_guard lock(mu_);
    lane = LaneOfAsk(pair, peer);
    if (lane != nullptr) {
      {
        std::lock_guard lock(asking->mu);
        asking->step = this;
        asking->lane = lane;
      }
      ++lane->asked;
      auto [place, first] = askings_.try_emplace(asking->key, asking);
      if (!first) {
        Asking* last = place->second;
        while (last->next != nullptr) last = last->next;
        last->next = asking;
        return;
      }
    }
  }
  if (lane == nullptr) {
    asking->AskByGrpc(nullptr);
    asking->Unref();
    return;
  }
  Start(lane, asking);
}

void Step::Start(AskLane* lane, Asking* asking, Way way) {
  // What ends here may hold the last reference to the step.
  Ref();
  tensorflow::core::ScopedUnref unref(this);
  asking->Ref();
  tensorflow::core::ScopedUnref unref_asking(asking);
  enum { kByGrpc, kBlind, kSettle, kWait, kEnd, kTake, kReceive } next = kReceive;
  absl::Status over;
  std::optional<Parked> parked;
  AloneAsks::Known known;
  {
    std::lock_guard lock(mu_);
    std::lock_guard asking_lock(asking->mu);
    asking->number = NumberOf(asking->key);
    const bool unsent = asking->unsent || endpoint_->TakeUnsent(lane->from, id_, asking->key, asking->number);
    over = asking->cancelled;
    auto aborted = aborted_by_.find(lane->from);
    if (over.ok() && lane->by_sealane && aborted != aborted_by_.end()) over = aborted->second;
    parked = TakeParked(lane, *asking);
    if (!over.ok()) {
      next = kEnd;
    } else if (parked.has_value() && !(unsent && parked->arrival().announced)) {
      next = kTake;  // The producer may no longer have it.
      asking->entry = Asking::Entry::kCame;
    } else if (unsent) {
      next = kByGrpc;
    } else if (lane->spoiled && (lane->receiving || lane->awaited > 0)) {
      next = kWait;  // It may come with the bundles that earlier recvs await.
      lane->unsettled.push_back(asking);
    } else if (lane->spoiled || lane->blind > 0 || way == Way::kGrpc) {
      next = kBlind;
      ++lane->blind;
    } else if (!lane->by_sealane || lane->refused) {
      next = lane->refused || std::exchange(lane->settling, true) ? kWait : kSettle;
      lane->unsettled.push_back(asking);
    } else {
      // Read under the lock: AwaitAll follows AloneAsks::Doubt, and finds recvs that still saw the old state.
      known = lane->route->alone([&](AloneAsks& alone) { return alone.Of(asking->key); });
      if (!known.agreed) {
        asking->entry = Asking::Entry::kAwaited;
        ++lane->awaited;
      }
    }
    asking->begun = next != kSettle && next != kWait;
  }
  switch (next) {
    case kEnd:
      return EndWith(asking, over);
    case kByGrpc:
      return EndByGrpc(asking);
    case kBlind:
      return EndByGrpc(asking, /*blind=*/true);
    case kTake:
      return Arrived(asking, parked->arrival());
    case kSettle:
      return Settle(lane);
    case kWait:
      return;
    case kReceive:
      break;
  }
  Receive(lane);
  if (known.room > 0) AskAlone(lane, asking);
}

void Step::AskAlone(AskLane* lane, Asking* asking) {
  asking->Ref();  // For `sized`.
  {
    std::lock_guard lock(mu_);
    lane->sized.push_back(asking);
    if (std::exchange(lane->flushing, true)) return;
  }
  FlushInTime(lane);
}

void Step::AskAlone(absl::string_view pair, absl::string_view key) {
  AskLane* lane;
  tensorflow::core::RefCountPtr<Asking> asking;
  {
    std::lock_guard lock(mu_);
    auto of = ask_lanes_.find(pair);
    auto found = askings_.find(key);
    if (of == ask_lanes_.end() || found == askings_.end() || found->second->lane != of->second.get()) return;
    lane = of->second.get();
    std::lock_guard asking_lock(found->second->mu);
    if (!found->second->begun || found->second->wait.started()) return;
    found->second->Ref();
    asking.reset(found->second);
  }
  AskAlone(lane, asking.get());
}

void Step::Settle(AskLane* lane) {
  Ref();
  auto settled = [this, lane](Way way) {
    const std::string from = way == Way::kSealane ? endpoint_->routes().ProducerOf(lane->route) : "";
    {
      std::lock_guard lock(mu_);
      lane->settling = false;
      if (way == Way::kSealane) {
        lane->by_sealane = true;
        lane->from = from;
      }
    }
    StartUnsettled(lane, way);
    Unref();
  };
  Way way = endpoint_->routes().Ask(lane->route, /*wait=*/of_ == Of::kCollective, settled);
  if (way != Way::kUnsettled) settled(way);
}

void Step::StartUnsettled(AskLane* lane, Way way) {
  std::vector<Asking*> unsettled;
  {
    std::lock_guard lock(mu_);
    unsettled.swap(lane->unsettled);
  }
  for (Asking* each : unsettled) Start(lane, each, way);
}

std::optional<Parked> Step::TakeParked(AskLane* lane, const Asking& asking) {
  auto found = lane->parked.find(asking.key);
  if (found == lane->parked.end()) return std::nullopt;
  std::optional<Parked> taken;
  std::vector<Parked>& parked = found->second;
  for (auto each = parked.begin(); each != parked.end() && !taken.has_value();) {
    const uint8_t behind = static_cast<uint8_t>(asking.number - each->arrival().number);
    if (behind > INT8_MAX) {  // For a later recv: the producer left the one before for gRPC.
      ++each;
      continue;
    }
    lane->parked_bytes -= each->bytes();
    if (behind == 0) taken = std::move(*each);
    each = parked.erase(each);
  }
  if (parked.empty()) lane->parked.erase(found);
  return taken;
}

void Step::Await(AskLane* lane, Asking* asking) {
  std::optional<Parked> parked;
  bool by_grpc = false;
  {
    std::lock_guard lock(mu_);
    auto found = askings_.find(asking->key);
    if (found == askings_.end() || found->second != asking || asking->entry != Asking::Entry::kNone) return;
    parked = TakeParked(lane, *asking);
    {
      std::lock_guard asking_lock(asking->mu);
      // The producer has it until all its parts are taken.
      by_grpc = !parked.has_value() && (lane->blind > 0 || lane->spoiled || !lane->by_sealane) && (!asking->wait.started() || asking->came != nullptr);
    }
    if (parked.has_value()) {
      asking->entry = Asking::Entry::kCame;
    } else if (!by_grpc) {
      asking->entry = Asking::Entry::kAwaited;
      ++lane->awaited;
    }
  }
  if (parked.has_value()) return Arrived(asking, parked->arrival());
  if (by_grpc) return EndByGrpc(asking);
  Receive(lane);
}

void Step::AwaitAll(absl::string_view pair) {
  AskLane* lane;
  {
    std::lock_guard lock(mu_);
    auto found = ask_lanes_.find(pair);
    if (found == ask_lanes_.end()) return;
    lane = found->second.get();
  }
  AwaitAll(lane);
}

void Step::AwaitAll(AskLane* lane) {
  std::vector<Asking*> alone;
  {
    std::lock_guard lock(mu_);
    for (auto& [key, asking] : askings_) {
      std::lock_guard asking_lock(asking->mu);
      if (asking->lane != lane || !asking->begun || asking->entry != Asking::Entry::kNone) continue;
      asking->Ref();
      alone.push_back(asking);
    }
  }
  for (Asking* asking : alone) {
    Await(lane, asking);
    asking->Unref();
  }
}

void Step::Flush(AskLane* lane) {
  Ref();
  tensorflow::core::ScopedUnref unref(this);
  for (;;) {
    std::vector<Asking*> ready;
    {
      std::lock_guard lock(mu_);
      if (lane->sized.empty()) {
        lane->flushing = false;
        lane->flushed = Clock::now();
        return;
      }
      ready.swap(lane->sized);
    }
    std::vector<sealane_wanted> wanted;
    std::vector<std::string> keys;
    keys.reserve(ready.size());
    for (Asking* asking : ready) {
      const size_t bytes = lane->route->alone([&](AloneAsks& alone) { return alone.Of(asking->key).room; });
      void* memory = nullptr;
      const absl::Status status = endpoint_->arena()->AllocateShared(bytes, &memory);
      if (!status.ok()) {
        bool alone;
        {
          std::lock_guard lock(mu_);
          alone = asking->entry == Asking::Entry::kNone;
        }
        // Otherwise it is asked for again when announced.
        if (alone) NoRoom(asking, bytes, status);
        continue;
      }
      {
        std::lock_guard lock(asking->mu);
        // A bundle may have given the size meanwhile.
        if (asking->ended || !asking->wait.Begin(bytes)) {
          sealane_free(memory);
          continue;
        }
      }
      keys.push_back(DataKey(asking->key, asking->number));
      wanted.push_back({TextOf(keys.back()), {memory, bytes, sealane_free, memory}, asking});
    }
    if (!wanted.empty()) AskFor(lane, wanted);
    for (Asking* asking : ready) asking->Unref();
  }
}

void Step::AskFor(AskLane* lane, const std::vector<sealane_wanted>& wanted) {
  for (const sealane_wanted& each : wanted) {
    auto* asking = static_cast<Asking*>(each.context);
    asking->Ref();  // One for its callback, one until its call is noted.
    asking->Ref();
    Ref();
  }
  std::vector<sealane_call*> calls(wanted.size());
  std::vector<int> attempts;
  for (const sealane_wanted& each : wanted) {
    auto* asking = static_cast<Asking*>(each.context);
    std::lock_guard lock(asking->mu);
    attempts.push_back(++asking->data.attempt);
  }
  std::string from;
  {
    std::lock_guard lock(mu_);
    from = lane->from;
  }
  absl::Status status =
      Take(sealane_recv_all(endpoint_->task(), TextOf(from), id_, wanted.data(), wanted.size(), SEALANE_NO_TIMEOUT, DataDone, calls.data()));
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto* asking = static_cast<Asking*>(wanted[i].context);
    if (status.ok()) {
      std::lock_guard lock(asking->mu);
      if (asking->data.ended || asking->data.attempt != attempts[i]) {
        sealane_call_free(calls[i]);
      } else {
        asking->data.handle = calls[i];
        if (asking->ended || asking->unsent || !asking->cancelled.ok()) asking->CancelCall();
      }
    } else {  // No callback comes.
      sealane_free(wanted[i].destination.memory);
      {
        std::lock_guard lock(asking->mu);
        asking->data.ended = true;
      }
      if (absl::IsResourceExhausted(status)) {  // gRPC has no such limit.
        EndByGrpc(asking);
      } else {
        EndWith(asking, status);
      }
      asking->Unref();
      Unref();
    }
    asking->Unref();
  }
}

void Asking::CancelCall() {
  if (data.handle != nullptr) sealane_error_free(sealane_call_cancel(data.handle));
}

void Asking::Cancel(const absl::Status& status) {
  Step* of;
  {
    std::lock_guard lock(mu);
    cancelled.Update(status);
    CancelCall();
    of = step;
  }
  // Otherwise it ends as soon as it is asked for.
  if (of != nullptr) of->EndSoon(this);
}

void Step::EndSoon(Asking* asking) {
  asking->Ref();
  Ref();
  endpoint_->Soon([this, asking] {
    bool begun;
    {
      std::lock_guard lock(asking->mu);
      begun = asking->begun;
    }
    // Otherwise it ends when its turn comes.
    if (begun) {
      EndByGrpc(asking);
    } else {
      StartUnsettledIfSpoiled(asking->lane);
    }
    asking->Unref();
    Unref();
  });
}

bool Step::Unsent(absl::string_view producer, absl::string_view key, uint8_t number) {
  Asking* asking;
  {
    std::lock_guard lock(mu_);
    auto found = askings_.find(key);
    const uint8_t behind = static_cast<uint8_t>(NumberOf(key) - number);
    if (behind > 0 && of_ == Of::kRendezvous) return behind <= INT8_MAX;
    if (found == askings_.end() || found->second->lane->from != producer) return false;
    asking = found->second;
    asking->Ref();
  }
  {
    std::lock_guard lock(asking->mu);
    asking->unsent = true;
    asking->CancelCall();
  }
  EndSoon(asking);
  asking->Unref();
  return true;
}

void Step::Refused(absl::string_view pair) {
  std::unique_lock lock(mu_);
  auto found = ask_lanes_.find(pair);
  if (found == ask_lanes_.end() || !found->second->by_sealane) return;
  AskLane* lane = found->second.get();
  // What comes with the bundle under way is used: its producer no longer has it.
  lane->refused = lane->receiving || lane->awaited > 0;
  lane->by_sealane = false;
  if (lane->bundle != nullptr) sealane_error_free(sealane_call_cancel(lane->bundle));
  for (auto& [key, asking] : askings_) {
    if (asking->lane != lane || asking->entry == Asking::Entry::kAwaited) continue;
    std::lock_guard asking_lock(asking->mu);
    if (!asking->begun) continue;
    asking->unsent = true;
    asking->CancelCall();
  }
  lock.unlock();
  Receive(lane);  // Ends what is awaited, if no bundle is under way.
}

void Step::Held(absl::string_view pair, absl::string_view from, const HeldTensors& held) {
  AskLane* lane;
  std::vector<Asking*> unmet;
  {
    std::lock_guard lock(mu_);
    auto found = ask_lanes_.find(pair);
    if (ended_ || found == ask_lanes_.end() || !found->second->by_sealane || found->second->from != from) return;
    lane = found->second.get();
    for (auto& [key, asking] : askings_) {
      if (asking->lane != lane || asking->entry == Asking::Entry::kCame) continue;
      auto tensor = held.find(HeldHashOf(key));
      if (tensor == held.end()) continue;
      std::lock_guard asking_lock(asking->mu);
      if (!asking->begun || asking->ended || !asking->cancelled.ok() || asking->number != tensor->second.number) continue;
      const bool bundle = lane->receiving || (asking->entry == Asking::Entry::kAwaited && lane->blind == 0);
      if (Meet(tensor->second.out, {bundle, asking->wait.started() && !asking->data.ended})) continue;
      ++lane->blind;
      asking->Ref();
      unmet.push_back(asking);
    }
  }
  for (Asking* asking : unmet) {
    ++lane->route->peer->unmet;
    LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: a tensor from " << lane->route->peer->name
                                 << " comes by gRPC: it was sent in another way than it was waited for, which is to be reported: " << asking->key;
    EndByGrpc(asking, /*blind=*/true);
    asking->Unref();
  }
}

void Step::AbortedBy(absl::string_view producer, const absl::Status& status) {
  std::vector<Asking*> theirs;
  {
    std::lock_guard lock(mu_);
    aborted_by_.try_emplace(std::string(producer), status);
    for (auto& [key, first] : askings_) {
      if (!first->lane->by_sealane || first->lane->from != producer) continue;
      for (Asking* asking = first; asking != nullptr; asking = asking->next) {
        asking->Ref();
        theirs.push_back(asking);
      }
    }
  }
  for (Asking* asking : theirs) {
    asking->Cancel(ErrorFrom(*asking->lane->route->peer, status));
    asking->Unref();
  }
}

void Step::DataDone(void* context, const sealane_error* error, sealane_tensor* came) {
  auto* asking = static_cast<Asking*>(context);
  absl::Status status = StatusOf(error);
  // Derived, as the producer reports the original error.
  if (absl::IsCancelled(status) || absl::IsAborted(status)) status = tensorflow::StatusGroup::MakeDerived(status);
  Step* step;
  sealane_call* handle;
  bool over, unsent = false;
  auto next = AloneWait::Do::kFinish;
  size_t bytes = 0;
  {
    std::lock_guard lock(asking->mu);
    step = asking->step;
    Step::Call& call = asking->data;
    call.ended = true;
    handle = std::exchange(call.handle, nullptr);
    over = asking->ended;
    if (!status.ok() && asking->cancelled.ok()) {
      unsent = asking->unsent;
      // It has grown since the step before; the producer still has it.
      if (!over && !unsent && absl::IsInvalidArgument(status)) {
        next = asking->wait.TooShort(asking->lane->route->alone([&](AloneAsks& alone) { return alone.Of(asking->key).room; }));
        bytes = asking->wait.asked();
        call.ended = next == AloneWait::Do::kGrpc;
      }
      if (unsent) next = AloneWait::Do::kGrpc;
    } else if (status.ok() && !over && sealane_tensor_view(came).meta.code == SEALANE_OPAQUE) {
      next = asking->wait.CameBare();
      if (next == AloneWait::Do::kAwait) asking->came = std::exchange(came, nullptr);
    }
  }
  sealane_call_free(handle);
  if (over) {
    sealane_tensor_free(came);
  } else if (next == AloneWait::Do::kAwait) {
    step->Await(asking->lane, asking);
  } else if (next == AloneWait::Do::kAsk) {
    step->AskForData(asking, bytes);
  } else if (next == AloneWait::Do::kGrpc || absl::IsInvalidArgument(status)) {
    step->EndByGrpc(asking);
  } else {
    step->DataCame(asking, status, came);
  }
  asking->Unref();
  step->Unref();
}

void Step::NoRoom(Asking* asking, size_t bytes, const absl::Status& why) {
  // As text: some TensorFlow releases do not export how absl's log writes numbers.
  LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: a tensor of " << absl::StrCat(bytes) << " bytes from " << asking->lane->route->peer->name
                               << " comes by gRPC: " << why.message();
  EndByGrpc(asking);  // gRPC has no such limit.
}

void Step::AskForData(Asking* asking, size_t bytes) {
  void* memory = nullptr;
  const absl::Status status = endpoint_->arena()->AllocateShared(std::max<size_t>(bytes, 1), &memory);  // Announced tensors may be empty.
  if (!status.ok()) return NoRoom(asking, bytes, status);
  const std::string key = DataKey(asking->key, asking->number);
  AskFor(asking->lane, {{TextOf(key), {memory, bytes, sealane_free, memory}, asking}});
}

void Step::DataCame(Asking* asking, const absl::Status& received, sealane_tensor* came) {
  Incoming incoming;
  absl::Status status = received;
  if (status.ok()) {
    const sealane_view view = sealane_tensor_view(came);
    std::optional<Incoming> announced;
    {
      std::lock_guard lock(asking->mu);
      announced = asking->announced;
    }
    if (view.meta.code != SEALANE_OPAQUE) {
      status = Read(view, &incoming);
    } else if (view.bytes != announced->bytes) {
      status = absl::DataLossError(absl::StrCat("Sealane: ", view.bytes, " bytes came where ", announced->bytes, " were announced"));
    } else {
      incoming = *announced;
      incoming.data = view.data;
      if (incoming.type != tensorflow::DT_INVALID) endpoint_->CameAnnounced(asking->lane->route, asking->key, view.bytes);
    }
  }
  EndWith(asking, status, incoming, came);
}

Asking* Step::TakeAway(Asking* asking, bool counts) {
  std::lock_guard lock(mu_);
  if (counts) CountOne(asking->key);
  AskLane* lane = asking->lane;
  if (asking->entry == Asking::Entry::kAwaited) --lane->awaited;
  asking->entry = Asking::Entry::kCame;
  // With nothing left to ask for, the next recv settles the way again, unless part of it may be here already.
  if (--lane->asked == 0 && !lane->receiving && lane->parked.empty()) lane->by_sealane = false;
  askings_.erase(asking->key);
  if (asking->next != nullptr) askings_.try_emplace(asking->next->key, asking->next);
  return asking->next;
}

void Step::Spoil(AskLane* lane) {
  if (of_ != Of::kCollective || !lane->route->said || std::exchange(lane->spoiled, true)) return;
  LOG(WARNING) << "Sealane: collectives from " << lane->route->peer->name << " use gRPC from now on, because one of them had to";
}

void Step::StartUnsettledIfSpoiled(AskLane* lane) {
  if (of_ != Of::kCollective) return;
  {
    std::lock_guard lock(mu_);
    if (!lane->spoiled || lane->unsettled.empty()) return;
    // Nobody awaits the bundle any more.
    if (lane->awaited == 0 && lane->bundle != nullptr) sealane_error_free(sealane_call_cancel(lane->bundle));
  }
  StartUnsettled(lane, Way::kUnsettled);
}

void Step::EndByGrpc(Asking* asking, bool blind) {
  Ref();
  tensorflow::core::ScopedUnref unref(this);
  AskLane* lane = asking->lane;
  std::function<void()> over;
  if (blind) {
    Ref();
    over = [this, lane] {
      bool none;
      {
        std::lock_guard lock(mu_);
        none = --lane->blind == 0 && lane->by_sealane && !lane->spoiled;
      }
      if (none) {
        AwaitAll(lane);
        Receive(lane);
      }
      Unref();
    };
  }
  absl::Status cancelled;
  bool ended = false;
  {
    std::lock_guard lock(asking->mu);
    cancelled = asking->cancelled;
    if (cancelled.ok()) {
      ended = std::exchange(asking->ended, true);
      if (!ended) asking->CancelCall();
    }
  }
  if (ended || !cancelled.ok()) {
    if (over) over();
    if (!ended) EndWith(asking, cancelled);
    return;
  }
  {
    std::lock_guard lock(mu_);
    unclean_ = true;
    Spoil(lane);
  }
  Asking* next = TakeAway(asking, /*counts=*/true);
  asking->AskByGrpc(std::move(over));
  asking->Unref();
  if (next != nullptr) Start(lane, next);
  StartUnsettledIfSpoiled(lane);
}

void Step::EndWith(Asking* asking, const absl::Status& ended, const Incoming& incoming, sealane_tensor* came) {
  absl::Status status = ended;
  bool cancelled;
  {
    std::lock_guard lock(asking->mu);
    if (std::exchange(asking->ended, true)) {
      sealane_tensor_free(came);
      return;
    }
    cancelled = !asking->cancelled.ok();
    if (!status.ok() && cancelled) status = asking->cancelled;
    asking->CancelCall();
  }
  AskLane* lane = asking->lane;
  if (status.ok()) {
    lane->route->peer->by_sealane.received.Add(incoming.bytes);
  } else {
    // This step fails, as a tensor may be lost. The next one goes another way.
    if (!cancelled && (absl::IsUnavailable(status) || absl::IsNotFound(status) || absl::IsPermissionDenied(status))) {
      endpoint_->routes().Lost(lane->route, status.message());
    }
    if (!cancelled) status = ErrorFrom(*lane->route->peer, status);
    std::lock_guard lock(mu_);
    unclean_ = true;
  }
  Ref();
  Asking* next = TakeAway(asking, /*counts=*/status.ok());
  asking->Received(status, incoming, came);
  asking->Unref();
  if (next != nullptr) Start(lane, next);
  StartUnsettledIfSpoiled(lane);
  Unref();
}

}  // namespace sealane_tensorflow
