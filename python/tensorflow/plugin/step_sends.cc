#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/logging.h"
#include "step.h"

namespace sealane_tensorflow {

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
  if (Fits(sending->key)) {
    std::lock_guard lock(mu_);
    auto asked = by_grpc_.empty() ? by_grpc_.end() : by_grpc_.find(sending->key);
    if (asked != by_grpc_.end() && asked->second > 0) {
      if (--asked->second == 0) by_grpc_.erase(asked);
    } else if (!ended_) {
      lane = LaneOfSend(pair, peer);
    }
    if (lane != nullptr) {
      sending->route = lane->route;
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
      sending->state = Sending::State::kStaging;
      ++sending->uses;
    }
  }
  if (lane == nullptr) {
    sending->LeaveForGrpc();
    sending->Ended(absl::OkStatus());
    return;
  }
  Start(lane, sending.release());
}

// With the use of its staging.
void Step::Start(SendLane* lane, Sending* sending) {
  Ref();
  sending->Stage([this, lane, sending](const absl::Status& status) {
    Staged(lane, sending, status);
    Unref();
  });
}

void Step::Staged(SendLane* lane, Sending* sending, absl::Status status) {
  if (sending->dead) {
    sending->outgoing.SetDead();
  } else if (status.ok()) {
    status = sending->outgoing.Set(sending->tensor);
    if (sending->outgoing.bytes() >= kAnnouncedBytes && PlainTypeOf(sending->tensor.dtype()).has_value()) {
      sending->ahead.SetAhead(sending->tensor);
      sending->data_key = DataKey(sending->key);
    }
    // Sealane would wait for room in the arena, which what is kept there may never make.
    const size_t bytes = sending->outgoing.bytes();
    if (status.ok() && bytes > kInlineBytes && !endpoint_->arena()->Holds(sending->outgoing.data())) {
      if (void* memory = endpoint_->arena()->AllocateShared(bytes)) {
        sending->outgoing.MoveTo(memory);
      } else {
        status = absl::ResourceExhaustedError(absl::StrCat("the arena has no room for its ", bytes, " bytes, see SEALANE_TF_ARENA_BYTES"));
      }
    }
  }
  bool flush = false, leave = false;
  Sending* next = nullptr;
  {
    std::lock_guard lock(mu_);
    if (!ended_ && sending->leave) {
      leave = true;
      sending->state = Sending::State::kLeft;
      TakeAway(sending, &next);
    } else if (!ended_ && status.ok()) {
      sending->state = Sending::State::kReady;
      lane->ready.push_back(sending);
      flush = !std::exchange(lane->flushing, true);
    }
  }
  if (leave) {
    Leave(lane, sending, next);
  } else if (!status.ok()) {
    Fail(sending, status);
  }
  Unuse(sending);
  if (flush) FlushInTime(lane);
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
        Take(sealane_send_all(endpoint_->task(), TextOf(to), id_, items.data(), items.size(), SEALANE_NO_TIMEOUT, SendDone,
                              /*calls=*/nullptr));
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
  bool sent = false;
  SendLane* lane = nullptr;
  Sending* next = nullptr;
  {
    std::lock_guard lock(step->mu_);
    --step->sent_;
    if (error != nullptr) sending->failed = true;
    if (--sending->parts == 0 && !sending->failed) {
      sending->route->peer->by_sealane.sent.Add(sending->outgoing.bytes());
      sent = sending->state == Sending::State::kSent && !step->ended_;
      if (sent) lane = step->TakeAway(sending, &next);
    }
  }
  if (error != nullptr) {
    step->Fail(sending, StatusOf(error));
  } else if (sent) {
    sending->Ended(absl::OkStatus());
    step->Unuse(sending);
    if (next != nullptr) step->Start(lane, next);
  }
  step->Unuse(sending);
  step->Unref();
}

void Step::Fail(Sending* sending, const absl::Status& status) {
  SendLane* lane;
  Sending* next = nullptr;
  {
    std::lock_guard lock(mu_);
    if (ended_ || sending->state == Sending::State::kLeft) return;
    sending->state = Sending::State::kLeft;
    unclean_ = true;
    lane = TakeAway(sending, &next);
  }
  LeftForGrpc(sending->key);
  LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: a tensor for " << sending->route->peer->name << " goes by gRPC: " << status.message();
  // The consumer may ask for it as soon as it is told, and finds it then.
  const std::string key = sending->key, to = endpoint_->routes().ConsumerOf(sending->route);
  Leave(lane, sending, next);
  endpoint_->TellUnsent(to, id_, key);
}

Step::SendLane* Step::TakeAway(Sending* sending, Sending** next) {
  auto found = sendings_.find(sending->key);
  SendLane* lane = found->second.first;
  Sending* following = sending->next;
  sendings_.erase(found);
  if (following == nullptr) return lane;
  sendings_.try_emplace(following->key, lane, following);
  if (lane->route->settled) {
    following->state = Sending::State::kStaging;
    ++following->uses;
    *next = following;
  } else {
    lane->held.push_back(following);
  }
  return lane;
}

void Step::Leave(SendLane* lane, Sending* sending, Sending* next) {
  sending->LeaveForGrpc();
  sending->Ended(absl::OkStatus());
  Unuse(sending);
  if (next != nullptr) Start(lane, next);
}

void Step::Unuse(Sending* sending) {
  {
    std::lock_guard lock(mu_);
    if (--sending->uses > 0) return;
  }
  delete sending;
}

void Step::LeftForGrpc(absl::string_view key) {
  if (!Fits(key)) return;
  std::lock_guard lock(mu_);
  auto asked = by_grpc_.try_emplace(std::string(key), 0).first;
  if (--asked->second == 0) by_grpc_.erase(asked);
}

void Step::AskedByGrpc(absl::string_view key) {
  if (!Fits(key)) return;
  SendLane* lane;
  Sending *sending, *next = nullptr;
  {
    std::lock_guard lock(mu_);
    if (ended_) return;
    auto found = sendings_.find(key);
    auto left = found == sendings_.end() ? by_grpc_.end() : by_grpc_.find(key);
    if (found == sendings_.end() || left != by_grpc_.end() || found->second.second->leave) {
      auto asked = by_grpc_.try_emplace(std::string(key), 0).first;
      if (++asked->second == 0) by_grpc_.erase(asked);
      return;
    }
    sending = found->second.second;
    if (sending->state == Sending::State::kStaging) {
      sending->leave = true;
      return;
    }
    lane = found->second.first;
    std::vector<Sending*>& waiting = sending->state == Sending::State::kHeld ? lane->held : lane->ready;
    waiting.erase(std::remove(waiting.begin(), waiting.end(), sending), waiting.end());
    if (sending->state == Sending::State::kSent) unclean_ = true;
    sending->state = Sending::State::kLeft;
    TakeAway(sending, &next);
  }
  Leave(lane, sending, next);
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
    for (Sending* sending : held) {
      sending->state = Sending::State::kStaging;
      ++sending->uses;
    }
  }
  for (Sending* sending : held) Start(lane, sending);
}

}  // namespace sealane_tensorflow
