#include "step.h"

#include <algorithm>

#include "tensorflow/core/platform/logging.h"

namespace sealane_tensorflow {


// --- Sending ----------------------------------------------------------------------------------------------------------------------------

Step::Step(std::shared_ptr<Endpoint> endpoint, Of of, int64_t id) : endpoint_(std::move(endpoint)), of_(of), id_(id) {
  endpoint_->Enter(this);
}

Step::~Step() = default;

Step::SendLane* Step::LaneOfSend(absl::string_view pair, const PeerOf& peer) {
  auto found = send_lanes_.find(pair);
  if (found != send_lanes_.end()) return found->second.get();
  SendRoute* route = endpoint_->routes().OfSend(pair, peer);
  if (route == nullptr) return nullptr;
  auto lane = std::make_unique<SendLane>();
  lane->route = route;
  return send_lanes_.emplace(std::string(pair), std::move(lane)).first->second.get();
}

void Step::Send(absl::string_view pair, const PeerOf& peer, std::unique_ptr<Sending> sending) {
  SendLane* lane = nullptr;
  {
    std::lock_guard lock(mu_);
    auto asked = by_grpc_.empty() ? by_grpc_.end() : by_grpc_.find(sending->key);
    if (asked != by_grpc_.end() && asked->second > 0) {
      if (--asked->second == 0) by_grpc_.erase(asked);
    } else if (!ended_) {
      lane = LaneOfSend(pair, peer);
    }
    if (lane != nullptr) {
      sending->route = lane->route;
      sending->uses = 1;
      auto [place, first] = sendings_.try_emplace(sending->key, lane, sending.get());
      if (!first) {
        Sending* last = place->second.second;
        while (last->next != nullptr) last = last->next;
        last->next = sending.release();
        return;
      }
      if (!lane->route->settled) {
        lane->held.push_back(sending.release());
        return;
      }
      sending->state = Sending::State::kStaged;
    }
  }
  if (lane == nullptr) {
    sending->LeaveForGrpc();
    sending->Ended(absl::OkStatus());
    return;
  }
  Start(lane, sending.release());
}

void Step::Start(SendLane* lane, Sending* sending) {
  {
    std::lock_guard lock(mu_);
    ++sending->uses;
  }
  Ref();
  sending->Stage([this, lane, sending](const absl::Status& staged) {
    tensorflow::core::ScopedUnref unref(this);
    absl::Status status = staged;
    if (sending->dead) {
      sending->outgoing.SetDead();
    } else if (status.ok()) {
      status = sending->outgoing.Set(sending->tensor);
      if (sending->outgoing.bytes() >= kAnnouncedBytes && PlainTypeOf(sending->tensor.dtype()).has_value()) {
        sending->ahead.SetAhead(sending->tensor);
        sending->data_key = DataKey(sending->key);
      }
    }
    bool flush = false;
    if (!status.ok()) {
      Fail(sending, status);
    } else {
      std::lock_guard lock(mu_);
      if (!ended_ && sending->state == Sending::State::kStaged) {
        lane->ready.push_back(sending);
        flush = !std::exchange(lane->flushing, true);
      }
    }
    Unuse(sending);
    if (flush) FlushInTime(lane);
  });
}

template <typename Lane>
void Step::FlushInTime(Lane* lane) {
  // The first of a burst goes at once, for its latency's sake.
  constexpr auto kBurst = std::chrono::microseconds(50);
  if (Clock::now() - lane->flushed > kBurst) return Flush(lane);
  Ref();
  endpoint_->Soon([this, lane] {
    Flush(lane);
    Unref();
  });
}

// What a callback of Sealane's is called with: the step, which it keeps, and the sending.
struct Step::Ending {
  Step* step;
  Sending* sending;
};

void Step::Flush(SendLane* lane) {
  for (;;) {
    std::vector<Sending*> ready;
    std::vector<sealane_item> items;
    {
      std::lock_guard lock(mu_);
      ready.swap(lane->ready);
      if (ready.empty()) {
        lane->flushing = false;
        lane->flushed = Clock::now();
        return;
      }
      for (Sending* sending : ready) {
        auto add = [&](absl::string_view key, Outgoing& outgoing) {
          // Small ones are copied at once: what they were in may go.
          bool lent = outgoing.bytes() > kInlineBytes;
          auto* ending = new Ending{this, sending};
          Ref();
          ++sending->uses;
          ++sent_;
          Ending* release = nullptr;
          if (lent) {
            release = new Ending{this, sending};
            Ref();
            ++sending->uses;
          }
          items.push_back({TextOf(key), outgoing.Source(lent ? SendReleased : nullptr, release), ending});
        };
        if (!sending->data_key.empty()) {
          sending->parts = 2;
          add(sending->key, sending->ahead);
        }
        add(sending->data_key.empty() ? sending->key : sending->data_key, sending->outgoing);
        sending->state = Sending::State::kSent;
      }
    }
    const std::string to = endpoint_->routes().ConsumerOf(lane->route);
    absl::Status status =
        Take(sealane_send_all(endpoint_->task(), TextOf(to), id_, items.data(), items.size(), SendDone, /*calls=*/nullptr));
    if (status.ok()) continue;
    for (const sealane_item& item : items) {  // None was taken over: no callback comes.
      auto* ending = static_cast<Ending*>(item.context);
      if (item.source.release != nullptr) SendReleased(item.source.release_context);
      {
        std::lock_guard lock(mu_);
        --sent_;
      }
      Fail(ending->sending, status);
      Unuse(ending->sending);
      delete ending;
      Unref();
    }
  }
}

void Step::SendReleased(void* context) {
  auto* ending = static_cast<Ending*>(context);
  ending->step->Unuse(ending->sending);
  ending->step->Unref();
  delete ending;
}

void Step::SendDone(void* context, const sealane_error* error) {
  auto* ending = static_cast<Ending*>(context);
  Step* step = ending->step;
  Sending* sending = ending->sending;
  delete ending;
  bool last;
  {
    std::lock_guard lock(step->mu_);
    --step->sent_;
    last = --sending->parts == 0;
  }
  if (error != nullptr) {
    step->Fail(sending, StatusOf(error));
  } else if (last) {
    sending->route->peer->by_sealane.sent.Add(sending->outgoing.bytes());
    step->Finish(sending);
  }
  step->Unuse(sending);
  step->Unref();
}

void Step::Fail(Sending* sending, const absl::Status& status) {
  {
    std::lock_guard lock(mu_);
    if (ended_ || sending->state == Sending::State::kLeft) return;
    sending->state = Sending::State::kLeft;
    unclean_ = true;
    --by_grpc_[sending->key];
  }
  LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: a tensor for " << sending->route->peer->name << " goes by gRPC: " << status.message();
  sending->LeaveForGrpc();
  endpoint_->TellUnsent(endpoint_->routes().ConsumerOf(sending->route), id_, sending->key);
  Finish(sending);
}

void Step::Finish(Sending* sending) {
  Sending* next;
  SendLane* lane;
  bool start = false;
  {
    std::lock_guard lock(mu_);
    auto found = sendings_.find(sending->key);
    if (found == sendings_.end() || found->second.second != sending) return;  // The step has ended.
    lane = found->second.first;
    next = sending->next;
    sendings_.erase(found);
    if (next != nullptr) {
      sendings_.try_emplace(next->key, lane, next);
      start = lane->route->settled;
      if (start) {
        next->state = Sending::State::kStaged;
      } else {
        lane->held.push_back(next);
      }
    }
  }
  sending->Ended(absl::OkStatus());
  Unuse(sending);
  if (start) Start(lane, next);
}

void Step::Unuse(Sending* sending) {
  {
    std::lock_guard lock(mu_);
    if (--sending->uses > 0) return;
  }
  delete sending;
}

void Step::AskedByGrpc(absl::string_view key) {
  Sending* sending = nullptr;
  {
    std::lock_guard lock(mu_);
    if (ended_) return;
    auto found = sendings_.find(key);
    if (found == sendings_.end() || found->second.second->state == Sending::State::kLeft) {
      auto asked = by_grpc_.try_emplace(std::string(key), 0).first;
      if (++asked->second == 0) by_grpc_.erase(asked);
      return;
    }
    auto [lane, first] = found->second;
    sending = first;
    auto remove = [sending](std::vector<Sending*>& from) { from.erase(std::remove(from.begin(), from.end(), sending), from.end()); };
    remove(lane->held);
    remove(lane->ready);
    if (sending->state == Sending::State::kSent) unclean_ = true;
    sending->state = Sending::State::kLeft;
  }
  sending->LeaveForGrpc();
  Finish(sending);
}

void Step::Settled(absl::string_view pair) {
  std::vector<Sending*> held;
  SendLane* lane;
  {
    std::lock_guard lock(mu_);
    auto found = send_lanes_.find(pair);
    if (ended_ || found == send_lanes_.end()) return;
    lane = found->second.get();
    held.swap(lane->held);
    for (Sending* sending : held) sending->state = Sending::State::kStaged;
  }
  for (Sending* sending : held) Start(lane, sending);
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
    if (ended_) return;
    ended_ = true;
    unclean = unclean_ || sent_ > 0;
    for (auto& [key, place] : sendings_) {
      for (Sending* sending = place.second; sending != nullptr; sending = std::exchange(sending->next, nullptr)) over.push_back(sending);
    }
    sendings_.clear();
    for (auto& [pair, lane] : send_lanes_) {
      lane->held.clear();
      lane->ready.clear();
    }
  }
  // What others of the same number still send and ask for would end with it.
  bool last = endpoint_->Leave(this);
  if (unclean && last && endpoint_->task() != nullptr) {
    absl::Status status = Take(sealane_cleanup(endpoint_->task(), id_));
    if (!status.ok()) VLOG(1) << "Sealane: step " << id_ << " was not cleaned up: " << status;
  }
  for (Sending* sending : over) {
    sending->Ended(absl::AbortedError("Sealane: the step has ended"));
    Unuse(sending);
  }
}

// --- Asking -----------------------------------------------------------------------------------------------------------------------------

Step::AskLane* Step::LaneOfAsk(absl::string_view pair, const PeerOf& peer) {
  auto found = ask_lanes_.find(pair);
  if (found != ask_lanes_.end()) return found->second.get();
  AskRoute* route = endpoint_->routes().OfAsk(pair, peer);
  if (route == nullptr) return nullptr;
  auto lane = std::make_unique<AskLane>();
  lane->route = route;
  return ask_lanes_.emplace(std::string(pair), std::move(lane)).first->second.get();
}

void Step::Ask(absl::string_view pair, const PeerOf& peer, Asking* asking) {
  AskLane* lane;
  {
    std::lock_guard lock(mu_);
    lane = LaneOfAsk(pair, peer);
    if (lane != nullptr && lane->way != Way::kGrpc) {
      asking->step = this;
      asking->peer = lane->route->peer;
      auto [place, first] = askings_.try_emplace(asking->key, lane, asking);
      if (!first) {
        Asking* last = place->second.second;
        while (last->next != nullptr) last = last->next;
        last->next = asking;
        return;
      }
    } else {
      lane = nullptr;
    }
  }
  if (lane == nullptr) {
    asking->AskByGrpc();
    asking->Unref();
    return;
  }
  Start(lane, asking);
}

void Step::Start(AskLane* lane, Asking* asking) {
  bool settle = false, by_grpc = false;
  {
    std::lock_guard lock(mu_);
    by_grpc = lane->way == Way::kGrpc;
    if (!by_grpc) {
      lane->ready.push_back(asking);
      if (lane->way == Way::kUnsettled) {
        if (lane->settling) return;
        lane->settling = settle = true;
      } else {
        if (lane->flushing) return;
        lane->flushing = true;
      }
    }
  }
  if (by_grpc) return EndByGrpc(asking);
  if (!settle) return FlushInTime(lane);

  Ref();
  auto settled = [this, lane](Way way) {
    tensorflow::core::ScopedUnref unref(this);
    std::vector<Asking*> by_grpc;
    {
      std::lock_guard lock(mu_);
      lane->way = way;
      lane->settling = false;
      if (way == Way::kGrpc) {
        by_grpc.swap(lane->ready);
      } else {
        lane->flushing = true;
      }
    }
    for (Asking* each : by_grpc) EndByGrpc(each);
    if (way == Way::kSealane) Flush(lane);
  };
  Way way = endpoint_->routes().Ask(lane->route, settled);
  if (way != Way::kUnsettled) settled(way);
}

void Step::Flush(AskLane* lane) {
  std::vector<Asking*> ready;
  for (;;) {
    ready.clear();
    {
      std::lock_guard lock(mu_);
      ready.swap(lane->ready);
      if (ready.empty()) {
        lane->flushing = false;
        lane->flushed = Clock::now();
        return;
      }
    }
    std::vector<sealane_wanted> first, data;
    std::vector<std::string> data_keys;
    data_keys.reserve(ready.size());
    for (Asking* asking : ready) {
      absl::Status cancelled;
      bool unsent;
      {
        std::lock_guard lock(asking->mu);
        cancelled = asking->cancelled;
        unsent = asking->unsent;
      }
      if (!cancelled.ok()) {
        EndWith(asking, cancelled, Incoming(), nullptr);
        continue;
      }
      if (unsent || endpoint_->TakeUnsent(id_, asking->key)) {
        EndByGrpc(asking);
        continue;
      }
      first.push_back({TextOf(asking->key), {}, asking});
      size_t bytes = endpoint_->SizeOf(asking->key);
      void* memory = bytes > 0 ? endpoint_->arena()->AllocateShared(bytes) : nullptr;
      if (memory == nullptr) continue;
      data_keys.push_back(DataKey(asking->key));
      data.push_back({TextOf(data_keys.back()), {memory, bytes, sealane_free, memory}, asking});
    }
    // The asking may end with its first call, before its second is made.
    for (const sealane_wanted& each : data) static_cast<Asking*>(each.context)->Ref();
    if (!first.empty()) AskFor(lane->route->peer, first, &Asking::first);
    if (!data.empty()) AskFor(lane->route->peer, data, &Asking::data);
    for (const sealane_wanted& each : data) static_cast<Asking*>(each.context)->Unref();
  }
}

void Step::AskFor(Peer* peer, std::vector<sealane_wanted> wanted, Asking::Call Asking::*which) {
  std::vector<sealane_call*> calls(wanted.size());
  for (const sealane_wanted& each : wanted) {
    auto* asking = static_cast<Asking*>(each.context);
    std::lock_guard lock(asking->mu);
    (asking->*which).started = true;
    asking->Ref();  // Its callback's, and one until its call is noted.
    asking->Ref();
    Ref();
  }
  const std::string from = peer->Address();
  absl::Status status = Take(sealane_recv_all(endpoint_->task(), TextOf(from), id_, wanted.data(), wanted.size(), SEALANE_NO_TIMEOUT,
                                              which == &Asking::first ? RecvDone<&Asking::first> : RecvDone<&Asking::data>, calls.data()));
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto* asking = static_cast<Asking*>(wanted[i].context);
    if (!status.ok()) {  // No callback comes.
      if (wanted[i].destination.memory != nullptr) sealane_free(wanted[i].destination.memory);
      {
        std::lock_guard lock(asking->mu);
        (asking->*which).ended = true;
      }
      EndWith(asking, status, Incoming(), nullptr);
      asking->Unref();
      Unref();
    } else {
      std::lock_guard lock(asking->mu);
      Asking::Call& call = asking->*which;
      if (call.ended) {
        sealane_call_free(calls[i]);
      } else {
        call.handle = calls[i];
        if (asking->ended || asking->unsent || !asking->cancelled.ok()) sealane_error_free(sealane_call_cancel(call.handle));
      }
    }
    asking->Unref();
  }
}

void Asking::CancelCalls() {
  for (Call* call : {&first, &data})
    if (call->handle != nullptr) sealane_error_free(sealane_call_cancel(call->handle));
}

void Asking::Cancel(const absl::Status& status) {
  std::lock_guard lock(mu);
  cancelled.Update(status);
  CancelCalls();
}

void Step::Unsent(absl::string_view key) {
  Asking* asking;
  {
    std::lock_guard lock(mu_);
    auto found = askings_.find(key);
    if (found == askings_.end()) return;
    asking = found->second.second;
    asking->Ref();
  }
  {
    std::lock_guard lock(asking->mu);
    asking->unsent = true;
    asking->CancelCalls();
  }
  asking->Unref();
}

void Step::AbortedBy(absl::string_view producer, const absl::Status& status) {
  std::vector<Asking*> theirs;
  {
    std::lock_guard lock(mu_);
    for (auto& [key, place] : askings_) {
      if (place.first->way != Way::kSealane || place.second->peer->Address() != producer) continue;
      for (Asking* asking = place.second; asking != nullptr; asking = asking->next) {
        asking->Ref();
        theirs.push_back(asking);
      }
    }
  }
  for (Asking* asking : theirs) {
    asking->Cancel(status);
    asking->Unref();
  }
}

template <Asking::Call Asking::*which>
void Step::RecvDone(void* context, const sealane_error* error, sealane_tensor* came) {
  auto* asking = static_cast<Asking*>(context);
  Step* step = asking->step;
  absl::Status status = StatusOf(error);
  sealane_call* handle;
  bool ended, unsent = false;
  {
    std::lock_guard lock(asking->mu);
    Asking::Call& call = asking->*which;
    call.ended = true;
    handle = std::exchange(call.handle, nullptr);
    ended = asking->ended;
    if (!status.ok() && !asking->cancelled.ok()) {
      status = asking->cancelled;
    } else if (!status.ok()) {
      unsent = asking->unsent;
    }
  }
  sealane_call_free(handle);
  if (ended) {
    sealane_tensor_free(came);
  } else if (unsent) {
    step->EndByGrpc(asking);
  } else if (which == &Asking::first) {
    step->FirstCame(asking, status, came);
  } else {
    step->DataCame(asking, status, came);
  }
  asking->Unref();
  step->Unref();
}

void Step::FirstCame(Asking* asking, const absl::Status& received, sealane_tensor* came) {
  Incoming incoming;
  absl::Status status = received;
  if (status.ok()) status = Read(sealane_tensor_view(came), &incoming);
  if (!status.ok() || incoming.dead || incoming.type != tensorflow::DT_INVALID || incoming.opaque != Opaque::kAhead) {
    return EndWith(asking, status, incoming, came);
  }
  size_t bytes = 0;
  status = ReadAhead(incoming, &bytes);
  sealane_tensor_free(came);
  if (!status.ok()) return EndWith(asking, status, Incoming(), nullptr);
  {
    std::lock_guard lock(asking->mu);
    // Into memory of the size that it had last time. Should it have grown, the call fails.
    if (asking->data.started && !asking->data.ended) return;
    asking->data = {};
  }
  endpoint_->SetSize(asking->key, bytes);
  void* memory = endpoint_->arena()->AllocateShared(bytes);
  // No room in the arena: gRPC has no such limit.
  if (memory == nullptr) return EndByGrpc(asking);
  const std::string key = DataKey(asking->key);
  AskFor(asking->peer, {{TextOf(key), {memory, bytes, sealane_free, memory}, asking}}, &Asking::data);
}

void Step::DataCame(Asking* asking, const absl::Status& received, sealane_tensor* came) {
  Incoming incoming;
  absl::Status status = received;
  if (status.ok()) status = Read(sealane_tensor_view(came), &incoming);
  if (absl::IsInvalidArgument(status)) {
    // It has grown since the step before, and is still to be had.
    endpoint_->SetSize(asking->key, 0);
    return EndByGrpc(asking);
  }
  EndWith(asking, status, incoming, came);
}

void Step::EndByGrpc(Asking* asking) {
  absl::Status cancelled;
  {
    std::lock_guard lock(asking->mu);
    cancelled = asking->cancelled;
    if (cancelled.ok()) {
      if (std::exchange(asking->ended, true)) return;
      asking->CancelCalls();
    }
  }
  if (!cancelled.ok()) return EndWith(asking, cancelled, Incoming(), nullptr);
  Ref();
  asking->Ref();
  Finish(asking);
  asking->AskByGrpc();
  asking->Unref();
  Unref();
}

void Step::EndWith(Asking* asking, const absl::Status& status, const Incoming& incoming, sealane_tensor* came) {
  {
    std::lock_guard lock(asking->mu);
    if (std::exchange(asking->ended, true)) {
      sealane_tensor_free(came);
      return;
    }
    asking->CancelCalls();
  }
  if (status.ok()) {
    asking->peer->by_sealane.received.Add(incoming.bytes);
  } else {
    std::lock_guard lock(mu_);
    unclean_ = true;
  }
  Ref();
  asking->Ref();
  Finish(asking);
  asking->Received(status, incoming, came);
  asking->Unref();
  Unref();
}

void Step::Finish(Asking* asking) {
  AskLane* lane;
  Asking* next;
  {
    std::lock_guard lock(mu_);
    auto found = askings_.find(asking->key);
    lane = found->second.first;
    next = asking->next;
    askings_.erase(found);
    if (next != nullptr) askings_.try_emplace(next->key, lane, next);
  }
  asking->Unref();
  if (next != nullptr) Start(lane, next);
}

}  // namespace sealane_tensorflow
