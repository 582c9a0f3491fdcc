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
  lane->bundles = BundlesKey(pair, of_);
  return send_lanes_.emplace(std::string(pair), std::move(lane)).first->second.get();
}

void Step::Send(absl::string_view pair, const PeerOf& peer, std::unique_ptr<Sending> sending) {
  SendLane* lane = nullptr;
  if (Fits(sending->key)) {
    std::lock_guard lock(mu_);
    auto asked = by_grpc_.empty() ? by_grpc_.end() : by_grpc_.find(sending->key);
    if (asked != by_grpc_.end() && asked->second > 0) {
      if (--asked->second == 0) by_grpc_.erase(asked);
      CountOne(sending->key);
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

// Takes over the use counted for staging.
void Step::Start(SendLane* lane, Sending* sending) {
  Ref();
  sending->Stage([this, lane, sending](const absl::Status& status) {
    Staged(lane, sending, status);
    Unref();
  });
}

Form Step::FormOf(SendLane* lane, const Sending& sending) {
  const Outgoing& outgoing = sending.outgoing;
  return lane->route->alone([&](AloneSends& alone) { return alone.FormOf(sending.key, outgoing.plain(), outgoing.bytes()); });
}

absl::Status Step::Prepare(Sending* sending, Form form) {
  sending->data_key = form == Form::kWhole ? "" : DataKey(sending->key, sending->number);
  Outgoing& outgoing = sending->outgoing;
  if (form == Form::kWhole || outgoing.bytes() <= kInlineBytes || endpoint_->arena()->Shares(outgoing.data())) return absl::OkStatus();
  // Allocated here: Sealane would wait for room in the arena, which tensors kept there may never make.
  void* memory = nullptr;
  absl::Status status = endpoint_->arena()->AllocateShared(outgoing.bytes(), &memory);
  if (status.ok()) outgoing.MoveTo(memory);
  return status;
}

void Step::Staged(SendLane* lane, Sending* sending, absl::Status status) {
  Outgoing& outgoing = sending->outgoing;
  {
    std::lock_guard lock(mu_);
    sending->number = NumberOf(sending->key);
  }
  if (sending->dead) {
    outgoing.SetDead();
  } else if (status.ok()) {
    status = outgoing.Set(sending->tensor);
  }
  bool flush = false, leave = false;
  Sending* next = nullptr;
  for (;;) {
    const Form form = FormOf(lane, *sending);
    if (status.ok()) status = Prepare(sending, form);
    std::lock_guard lock(mu_);
    if (!ended_ && sending->leave) {
      leave = true;
      sending->state = Sending::State::kLeft;
      TakeAway(sending, &next);
    } else if (!ended_ && status.ok()) {
      if (FormOf(lane, *sending) != form) continue;  // A message from the consumer has changed it.
      sending->state = Sending::State::kReady;
      sending->form = form;
      sending->out = {/*entry=*/form != Form::kAlone, /*data=*/form != Form::kWhole};
      if (lane->bundling && form == Form::kWhole) {
        lane->unbundled.push_back(sending);  // Goes along when the bundle under way ends.
      } else {
        lane->ready.push_back(sending);
        flush = !std::exchange(lane->flushing, true);
      }
    }
    break;
  }
  if (leave) {
    Leave(lane, sending, next);
  } else if (!status.ok()) {
    Fail(sending, status);
  }
  Unuse(sending);
  if (flush) FlushInTime(lane);
}

void Step::Flush(SendLane* lane) {
  for (;;) {
    std::vector<Sending*> ready, data;
    {
      std::lock_guard lock(mu_);
      if (lane->ready.empty()) {
        lane->flushing = false;
        lane->flushed = Clock::now();
        return;
      }
      ready.swap(lane->ready);
      for (Sending* sending : ready) {
        if (sending->form != Form::kAlone) lane->unbundled.push_back(sending);
        if (sending->form == Form::kWhole) continue;
        sending->state = Sending::State::kSent;
        ++sending->uses;
        ++sent_;
        data.push_back(sending);
      }
    }
    const std::string to = endpoint_->routes().ConsumerOf(lane->route);
    // First: it is short, and tells the consumer what to make room for.
    SendBundle(lane, to);
    if (!data.empty()) SendData(to, data);
  }
}

// Context of Sealane's callbacks: holds a reference to the step and a use of the sending.
struct Step::Part {
  Step* step;
  Sending* sending;
};

void Step::SendData(const std::string& to, const std::vector<Sending*>& ready) {
  std::vector<sealane_item> items;
  for (Sending* sending : ready) {
    Ref();  // For the release.
    Ref();
    bool described;
    {
      std::lock_guard lock(mu_);
      ++sending->uses;
      described = sending->described = sending->form == Form::kAlone;
    }
    items.push_back({TextOf(sending->data_key), sending->outgoing.Source(described, PartReleased, new Part{this, sending}), new Part{this, sending}});
  }
  absl::Status status =
      Take(sealane_send_all(endpoint_->task(), TextOf(to), id_, items.data(), items.size(), SEALANE_NO_TIMEOUT, PartDone, /*calls=*/nullptr));
  if (status.ok()) return CleanUpIfEnded();
  for (const sealane_item& item : items) {  // None was taken over: no callback comes.
    PartReleased(item.source.release_context);
    std::unique_ptr<Part> part(static_cast<Part*>(item.context));
    PartEnded(part->sending, &Parts::data, status);
    Unref();
  }
}

void Step::PartReleased(void* context) {
  std::unique_ptr<Part> part(static_cast<Part*>(context));
  part->step->Unuse(part->sending);
  part->step->Unref();
}

void Step::PartDone(void* context, const sealane_error* error) {
  std::unique_ptr<Part> part(static_cast<Part*>(context));
  part->step->PartEnded(part->sending, &Parts::data, StatusOf(error));
  part->step->Unref();
}

struct Step::Bundle {
  Step* step;
  SendLane* lane;
  std::vector<Sending*> sendings;
};

void Step::SendBundle(SendLane* lane, const std::string& to) {
  for (;;) {
    auto bundle = std::make_unique<Bundle>(Bundle{this, lane, {}});
    BundleWriter writer;
    {
      std::lock_guard lock(mu_);
      if (lane->bundling || lane->unbundled.empty()) return;
      for (Sending* sending : lane->unbundled) {
        if (!writer.Add(sending->key, sending->number, sending->outgoing, sending->form != Form::kWhole)) break;
        sending->state = Sending::State::kSent;
        ++sending->uses;
        ++sent_;
        bundle->sendings.push_back(sending);
      }
      lane->unbundled.erase(lane->unbundled.begin(), lane->unbundled.begin() + static_cast<ptrdiff_t>(bundle->sendings.size()));
      lane->bundling = true;
    }
    Ref();
    absl::Status status = HandOver(writer, to, bundle.get());
    if (status.ok()) {
      bundle.release();
      return CleanUpIfEnded();
    }
    {
      std::lock_guard lock(mu_);
      lane->bundling = false;
    }
    for (Sending* sending : bundle->sendings) PartEnded(sending, &Parts::entry, status);
    Unref();
  }
}

absl::Status Step::HandOver(const BundleWriter& writer, const std::string& to, Bundle* bundle) {
  const size_t bytes = writer.bytes();
  // A short bundle is copied when sent.
  alignas(uint64_t) char small[kInlineBytes];
  const bool lent = bytes > sizeof small;
  void* memory = small;
  if (lent) TF_RETURN_IF_ERROR(endpoint_->arena()->AllocateShared(bytes, &memory));
  writer.Write(memory);
  const uint64_t dims[] = {bytes};
  sealane_source source = {{SEALANE_OPAQUE, 8, 1, 0, 1, 0, dims}, memory, bytes, lent ? sealane_free : nullptr, memory};
  sealane_item item = {TextOf(bundle->lane->bundles), source, bundle};
  absl::Status status =
      Take(sealane_send_all(endpoint_->task(), TextOf(to), id_, &item, 1, SEALANE_NO_TIMEOUT, BundleDone, /*calls=*/nullptr));
  if (!status.ok() && lent) sealane_free(memory);
  return status;
}

void Step::BundleDone(void* context, const sealane_error* error) {
  std::unique_ptr<Bundle> bundle(static_cast<Bundle*>(context));
  Step* step = bundle->step;
  {
    std::lock_guard lock(step->mu_);
    bundle->lane->bundling = false;
  }
  step->SendBundle(bundle->lane, step->endpoint_->routes().ConsumerOf(bundle->lane->route));
  const absl::Status status = StatusOf(error);
  for (Sending* sending : bundle->sendings) step->PartEnded(sending, &Parts::entry, status);
  step->Unref();
}

void Step::PartEnded(Sending* sending, bool Parts::*part, const absl::Status& status) {
  bool sent = false;
  SendLane* lane = nullptr;
  Sending* next = nullptr;
  {
    std::lock_guard lock(mu_);
    --sent_;
    if (status.ok()) {
      sending->out.*part = false;
    } else {
      sending->failed = true;
    }
    // Bytes sent with type and shape complete it, even if it was announced since.
    const bool taken = sending->described ? !sending->out.data : !sending->out.entry && !sending->out.data;
    if (taken && !sending->failed && sending->state == Sending::State::kSent) {
      sending->route->peer->by_sealane.sent.Add(sending->outgoing.bytes());
      sending->state = Sending::State::kTaken;
      sent = !ended_;
      if (sent) {
        lane = TakeAway(sending, &next);
        Forget(lane, sending);
      }
    }
  }
  if (!status.ok()) {
    Fail(sending, status);
  } else if (sent) {
    sending->Ended(absl::OkStatus());
    Unuse(sending);
    if (next != nullptr) Start(lane, next);
  }
  Unuse(sending);
}

void Step::Fail(Sending* sending, const absl::Status& status) {
  SendLane* lane;
  Sending* next = nullptr;
  {
    std::lock_guard lock(mu_);
    if (ended_ || sending->state == Sending::State::kTaken || sending->state == Sending::State::kLeft) return;
    sending->state = Sending::State::kLeft;
    unclean_ = true;
    lane = TakeAway(sending, &next);
    Forget(lane, sending);
    if (!sending->leave) CountLeft(sending->key);
  }
  LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: a tensor for " << sending->route->peer->name << " goes by gRPC: " << status.message();
  // The consumer may ask as soon as it is told, and must find it then.
  const uint8_t number = sending->number;
  const std::string key = sending->key, to = endpoint_->routes().ConsumerOf(sending->route);
  Leave(lane, sending, next);
  endpoint_->TellUnsent(to, id_, number, key);
}

void Step::Forget(SendLane* lane, Sending* sending) {
  for (std::vector<Sending*>* waiting : {&lane->held, &lane->ready, &lane->unbundled})
    waiting->erase(std::remove(waiting->begin(), waiting->end(), sending), waiting->end());
}

Step::SendLane* Step::TakeAway(Sending* sending, Sending** next) {
  auto found = sendings_.find(sending->key);
  SendLane* lane = found->second.first;
  Sending* following = sending->next;
  CountOne(sending->key);
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
  CountLeft(key);
}

void Step::CountLeft(absl::string_view key) {
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
    Forget(lane, sending);
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
    // A restarted consumer does not know what goes alone: that is announced after all.
    for (auto& [key, place] : sendings_) {
      Sending* sending = place.second;
      const bool ready = sending->state == Sending::State::kReady, sent = sending->state == Sending::State::kSent;
      if (place.first != lane || !(ready || sent) || sending->form != Form::kAlone) continue;
      sending->form = Form::kAnnounced;
      sending->out.entry = true;
      if (sent) lane->unbundled.push_back(sending);
    }
  }
  SendBundle(lane, endpoint_->routes().ConsumerOf(lane->route));
  for (Sending* sending : held) Start(lane, sending);
}

void Step::Agree(absl::string_view pair, absl::string_view key, const std::shared_ptr<void>& agreement) {
  std::shared_ptr<void> before;  // Of an earlier hello; released without the lock, as its deleter sends a message.
  std::lock_guard lock(mu_);
  auto lane = send_lanes_.find(pair);
  auto found = sendings_.find(key);
  if (lane == send_lanes_.end() || found == sendings_.end() || found->second.first != lane->second.get()) return;
  Sending* sending = found->second.second;
  const bool out = sending->state == Sending::State::kReady || sending->state == Sending::State::kSent;
  if (out && sending->form == Form::kWhole) before = std::exchange(sending->agreement, agreement);
}

// Tensors are reported once out for this many sweeps. The first sweep may come at any time.
constexpr int kHeldSweeps = 2;

void Step::TellHeld() {
  absl::flat_hash_map<SendLane*, std::vector<std::string>> held;
  {
    std::lock_guard lock(mu_);
    if (ended_) return;
    for (auto& [key, place] : sendings_) {
      Sending* sending = place.second;
      if (sending->state != Sending::State::kReady && sending->state != Sending::State::kSent) continue;
      if (sending->sweeps < kHeldSweeps && ++sending->sweeps < kHeldSweeps) continue;
      held[place.first].push_back(HeldLine(sending->key, {sending->number, sending->out}));
    }
  }
  for (auto& [lane, tensors] : held) {
    // If there are more than are told at once, they take turns.
    std::sort(tensors.begin(), tensors.end());
    std::rotate(tensors.begin(), std::upper_bound(tensors.begin(), tensors.end(), lane->told), tensors.end());
    const size_t told = endpoint_->TellHeld(endpoint_->routes().ConsumerOf(lane->route), *this, lane->route->pair, tensors);
    lane->told = tensors[told - 1];
  }
}

}  // namespace sealane_tensorflow
