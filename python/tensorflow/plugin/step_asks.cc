#include "tensorflow/core/platform/logging.h"
#include "step.h"
#include "tensorflow/core/platform/status.h"

namespace sealane_tensorflow {

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
  AskLane* lane = nullptr;
  if (Fits(asking->key)) {
    std::lock_guard lock(mu_);
    lane = LaneOfAsk(pair, peer);
    if (lane != nullptr) {
      asking->step = this;
      asking->lane = lane;
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
    asking->AskByGrpc();
    asking->Unref();
    return;
  }
  Start(lane, asking);
}

void Step::Start(AskLane* lane, Asking* asking) {
  bool by_sealane;
  {
    std::lock_guard lock(mu_);
    lane->ready.push_back(asking);
    by_sealane = lane->by_sealane;
    if (std::exchange(by_sealane ? lane->flushing : lane->settling, true)) return;
  }
  if (by_sealane) {
    FlushInTime(lane);
  } else {
    Settle(lane);
  }
}

void Step::Settle(AskLane* lane) {
  Ref();
  auto settled = [this, lane](Way way) {
    const std::string from = way == Way::kSealane ? endpoint_->routes().ProducerOf(lane->route) : "";
    std::vector<Asking*> by_grpc;
    {
      std::lock_guard lock(mu_);
      lane->settling = false;
      if (way == Way::kSealane) {
        lane->by_sealane = lane->flushing = true;
        lane->from = from;
      } else {
        by_grpc.swap(lane->ready);
      }
    }
    for (Asking* each : by_grpc) EndByGrpc(each);
    if (way == Way::kSealane) Flush(lane);
    Unref();
  };
  Way way = endpoint_->routes().Ask(lane->route, settled);
  if (way != Way::kUnsettled) settled(way);
}

void Step::Flush(AskLane* lane) {
  // What ends here may be what keeps the step.
  Ref();
  tensorflow::core::ScopedUnref unref(this);
  for (;;) {
    std::vector<Asking*> ready;
    absl::Status aborted;
    {
      std::lock_guard lock(mu_);
      ready.swap(lane->ready);
      if (ready.empty()) {
        lane->flushing = false;
        lane->flushed = Clock::now();
        if (lane->asked == 0) lane->by_sealane = false;
        return;
      }
      auto found = aborted_by_.find(lane->from);
      if (found != aborted_by_.end()) aborted = found->second;
    }
    std::vector<sealane_wanted> first, data;
    std::vector<std::string> data_keys;
    data_keys.reserve(ready.size());
    for (Asking* asking : ready) {
      absl::Status status = aborted;
      bool unsent;
      {
        std::lock_guard lock(asking->mu);
        if (!asking->cancelled.ok()) status = asking->cancelled;
        unsent = asking->unsent;
      }
      if (!status.ok()) {
        EndWith(asking, status);
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
      {
        // Before what goes ahead can come, which otherwise asks for it.
        std::lock_guard lock(asking->mu);
        asking->data.started = true;
      }
      asking->Ref();  // It may end with its first call, before its second is made.
      data_keys.push_back(DataKey(asking->key));
      data.push_back({TextOf(data_keys.back()), {memory, bytes, sealane_free, memory}, asking});
    }
    if (!first.empty()) AskFor(lane, first, &Asking::first);
    if (!data.empty()) AskFor(lane, data, &Asking::data);
    for (const sealane_wanted& each : data) static_cast<Asking*>(each.context)->Unref();
  }
}

void Step::AskFor(AskLane* lane, const std::vector<sealane_wanted>& wanted, Call Asking::*which) {
  for (const sealane_wanted& each : wanted) {
    auto* asking = static_cast<Asking*>(each.context);
    std::lock_guard lock(asking->mu);
    (asking->*which).started = true;
    asking->Ref();  // Its callback's, and one until its call is noted.
    asking->Ref();
    Ref();
  }
  std::vector<sealane_call*> calls(wanted.size());
  absl::Status status = Take(sealane_recv_all(endpoint_->task(), TextOf(lane->from), id_, wanted.data(), wanted.size(), SEALANE_NO_TIMEOUT,
                                              which == &Asking::first ? RecvDone<&Asking::first> : RecvDone<&Asking::data>, calls.data()));
  for (size_t i = 0; i < wanted.size(); ++i) {
    auto* asking = static_cast<Asking*>(wanted[i].context);
    if (status.ok()) {
      std::lock_guard lock(asking->mu);
      Call& call = asking->*which;
      if (call.ended) {
        sealane_call_free(calls[i]);
      } else {
        call.handle = calls[i];
        if (asking->ended || asking->unsent || !asking->cancelled.ok()) sealane_error_free(sealane_call_cancel(call.handle));
      }
    } else {  // No callback comes.
      if (wanted[i].destination.memory != nullptr) sealane_free(wanted[i].destination.memory);
      {
        std::lock_guard lock(asking->mu);
        (asking->*which).ended = true;
      }
      EndWith(asking, status);
      asking->Unref();
      Unref();
    }
    asking->Unref();
  }
}

void Asking::CancelCalls() {
  for (Step::Call* call : {&first, &data})
    if (call->handle != nullptr) sealane_error_free(sealane_call_cancel(call->handle));
}

void Asking::Cancel(const absl::Status& status) {
  std::lock_guard lock(mu);
  cancelled.Update(status);
  CancelCalls();
}

bool Step::Unsent(absl::string_view key) {
  Asking* asking;
  {
    std::lock_guard lock(mu_);
    auto found = askings_.find(key);
    if (found == askings_.end()) return false;
    asking = found->second;
    asking->Ref();
  }
  {
    std::lock_guard lock(asking->mu);
    asking->unsent = true;
    asking->CancelCalls();
  }
  asking->Unref();
  return true;
}

void Step::Refused(absl::string_view pair) {
  std::vector<std::string> keys;
  {
    std::lock_guard lock(mu_);
    for (auto& [key, asking] : askings_)
      if (asking->lane->by_sealane && asking->lane->route->pair == pair) keys.emplace_back(key);
  }
  for (const std::string& key : keys) Unsent(key);
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
    asking->Cancel(status);
    asking->Unref();
  }
}

template <Step::Call Asking::*which>
void Step::RecvDone(void* context, const sealane_error* error, sealane_tensor* came) {
  auto* asking = static_cast<Asking*>(context);
  Step* step = asking->step;
  absl::Status status = StatusOf(error);
  // The producer reports what made it give up.
  if (absl::IsCancelled(status) || absl::IsAborted(status)) status = tensorflow::StatusGroup::MakeDerived(status);
  sealane_call* handle;
  bool ended, unsent = false, wait = false;
  size_t grown = 0;
  {
    std::lock_guard lock(asking->mu);
    Call& call = asking->*which;
    call.ended = true;
    handle = std::exchange(call.handle, nullptr);
    ended = asking->ended;
    if (!status.ok() && !asking->cancelled.ok()) {
      status = asking->cancelled;
    } else if (!status.ok()) {
      unsent = asking->unsent;
      // It has grown since the step before, and is still to be had.
      bool too_short = which == &Asking::data && !unsent && absl::IsInvalidArgument(status) && !std::exchange(asking->grown, true);
      if (too_short) call = {};
      wait = too_short && asking->announced == 0;
      grown = too_short ? asking->announced : 0;
      if (grown > 0) call.started = true;
    }
  }
  sealane_call_free(handle);
  if (ended) {
    sealane_tensor_free(came);
  } else if (wait) {
    // What goes ahead says how long it is.
  } else if (grown > 0) {
    step->AskForData(asking, grown);
  } else if (unsent || absl::IsInvalidArgument(status)) {
    // Another call for the same key has not quite ended.
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
  if (!status.ok()) return EndWith(asking, status);
  {
    std::lock_guard lock(asking->mu);
    asking->announced = bytes;
    if (asking->data.started) return;  // Into memory of the size that it had in an earlier step.
    asking->data.started = true;
  }
  AskForData(asking, bytes);
}

void Step::AskForData(Asking* asking, size_t bytes) {
  void* memory = endpoint_->arena()->AllocateShared(bytes);
  if (memory == nullptr) {  // gRPC has no such limit.
    LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: a tensor of " << bytes << " bytes from " << asking->lane->route->peer->name
                                 << " comes by gRPC: the arena has no room for it, see SEALANE_TF_ARENA_BYTES";
    return EndByGrpc(asking);
  }
  const std::string key = DataKey(asking->key);
  AskFor(asking->lane, {{TextOf(key), {memory, bytes, sealane_free, memory}, asking}}, &Asking::data);
}

void Step::DataCame(Asking* asking, const absl::Status& received, sealane_tensor* came) {
  Incoming incoming;
  absl::Status status = received;
  if (status.ok()) status = Read(sealane_tensor_view(came), &incoming);
  EndWith(asking, status, incoming, came);
}

Asking* Step::TakeAway(Asking* asking) {
  std::lock_guard lock(mu_);
  AskLane* lane = asking->lane;
  // Where nothing is asked for, the next asking looks again which way to go.
  if (--lane->asked == 0 && !lane->flushing) lane->by_sealane = false;
  askings_.erase(asking->key);
  if (asking->next != nullptr) askings_.try_emplace(asking->next->key, asking->next);
  return asking->next;
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
  if (!cancelled.ok()) return EndWith(asking, cancelled);
  Ref();
  AskLane* lane = asking->lane;
  Asking* next = TakeAway(asking);
  asking->AskByGrpc();
  asking->Unref();
  if (next != nullptr) Start(lane, next);
  Unref();
}

void Step::EndWith(Asking* asking, const absl::Status& status, const Incoming& incoming, sealane_tensor* came) {
  bool cancelled, sized;
  {
    std::lock_guard lock(asking->mu);
    if (std::exchange(asking->ended, true)) {
      sealane_tensor_free(came);
      return;
    }
    cancelled = !asking->cancelled.ok();
    sized = asking->data.started;
    asking->CancelCalls();
  }
  AskLane* lane = asking->lane;
  if (status.ok()) {
    lane->route->peer->by_sealane.received.Add(incoming.bytes);
    if (sized) endpoint_->NoteSize(asking->key, incoming.bytes >= kAnnouncedBytes ? incoming.bytes : 0);
  } else {
    // This step fails, since a tensor may be lost. The next goes another way.
    if (!cancelled && (absl::IsUnavailable(status) || absl::IsNotFound(status) || absl::IsPermissionDenied(status))) {
      endpoint_->routes().Lost(lane->route, status.message());
    }
    std::lock_guard lock(mu_);
    unclean_ = true;
  }
  Ref();
  Asking* next = TakeAway(asking);
  asking->Received(status, incoming, came);
  asking->Unref();
  if (next != nullptr) Start(lane, next);
  Unref();
}

}  // namespace sealane_tensorflow
