#include "routes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/random.h"

namespace sealane_tensorflow {

using Clock = std::chrono::steady_clock;

absl::string_view PairOf(const tensorflow::Rendezvous::ParsedKey& key) {
  return key.FullKey().substr(0, static_cast<size_t>(key.edge_name.data() - key.FullKey().data()));
}

template <typename Route>
Route* Routes::Of(absl::flat_hash_map<std::string, std::unique_ptr<Route>>& routes, absl::string_view pair, const std::function<Peer*()>& peer) {
  {
    std::shared_lock lock(mu_);
    auto found = routes.find(pair);
    if (found != routes.end()) return found->second.get();
  }
  std::lock_guard lock(mu_);
  if (routes.size() >= kPairs) return nullptr;
  std::unique_ptr<Route>& route = routes[pair];
  if (route == nullptr) {
    route = std::make_unique<Route>();
    route->pair = std::string(pair);
    route->peer = peer();
  }
  return route.get();
}

SendRoute* Routes::OfSend(absl::string_view pair, const std::function<Peer*()>& peer) { return Of(sends_, pair, peer); }

AskRoute* Routes::OfAsk(absl::string_view pair, const std::function<Peer*()>& peer) { return Of(asks_, pair, peer); }

Way Routes::Ask(AskRoute* route, bool wait, std::function<void(Way)> later) {
  bool before;
  {
    std::lock_guard lock(mu_);
    before = route->before && !wait;
    switch (route->state) {
      case AskRoute::State::kSealane:
        return Way::kSealane;
      case AskRoute::State::kSettling:
        if (before) return Way::kGrpc;
        route->waiting.push_back(std::move(later));
        return Way::kUnsettled;
      case AskRoute::State::kGrpc:
        if (Clock::now() < route->next_hello) return Way::kGrpc;
        if (!before) route->waiting.push_back(std::move(later));
        break;
      case AskRoute::State::kNone:
        route->waiting.push_back(std::move(later));
        break;
    }
    route->state = AskRoute::State::kSettling;
    route->hello = tensorflow::random::New64();
  }
  say_hello_(route);
  return before ? Way::kGrpc : Way::kUnsettled;
}

uint64_t Routes::SayHelloTo(AskRoute* route, const std::string& producer) {
  std::lock_guard lock(mu_);
  route->producer = producer;
  return route->hello;
}

SendRoute* Routes::Hello(absl::string_view pair, absl::string_view from, uint64_t hello, const std::function<Peer*()>& peer,
                         std::string* before, std::string* why) {
  SendRoute* route = OfSend(pair, peer);
  std::lock_guard lock(mu_);
  if (route == nullptr) {
    *why = absl::StrCat("there are more than ", kPairs, " pairs of devices");
    return nullptr;
  }
  if (route->settled && route->to != from) {
    if (route->peer->Address() != from) {
      *why = absl::StrCat("two tasks have the same name: one is attached as ", route->to, ", one as ", from);
      return nullptr;
    }
    *before = route->to;
  }
  route->to = std::string(from);
  route->hello = hello;
  route->alone([](AloneSends& alone) { alone.Clear(); });
  route->settled = true;
  return route;
}

bool Routes::GoesAlone(absl::string_view pair, absl::string_view from, uint64_t hello, absl::string_view key, size_t bytes) {
  std::shared_lock lock(mu_);
  auto found = sends_.find(pair);
  if (found == sends_.end() || found->second->to != from || found->second->hello != hello) return false;
  return found->second->alone([&](AloneSends& alone) { return alone.Add(key, bytes); });
}

void Routes::Agreed(absl::string_view pair, absl::string_view from, uint64_t hello, absl::string_view key) {
  std::shared_lock lock(mu_);
  AskRoute* route = FindAsk(pair);
  if (route == nullptr || route->producer != from) return;
  route->alone([&](AloneAsks& alone) { alone.Agreed(key, hello); });
}

std::string Routes::ConsumerOf(SendRoute* route) {
  std::shared_lock lock(mu_);
  return route->to;
}

std::string Routes::ProducerOf(AskRoute* route) {
  std::shared_lock lock(mu_);
  return route->producer;
}

std::vector<std::string> Routes::PairsOf(absl::string_view producer) {
  std::vector<std::string> pairs;
  std::shared_lock lock(mu_);
  for (const auto& [pair, route] : asks_)
    if (route->producer == producer) pairs.push_back(pair);
  return pairs;
}

AskRoute* Routes::FindAsk(absl::string_view pair) {
  auto found = asks_.find(pair);
  return found == asks_.end() ? nullptr : found->second.get();
}

void Routes::Welcome(absl::string_view pair, absl::string_view from) {
  AskRoute* route;
  {
    std::shared_lock lock(mu_);
    route = FindAsk(pair);
    if (route == nullptr || route->producer != from) return;
  }
  Settle(route, AskRoute::State::kSealane, "");
}

void Routes::Refused(absl::string_view pair, uint64_t hello, absl::string_view why) {
  AskRoute* route;
  {
    std::shared_lock lock(mu_);
    route = FindAsk(pair);
    if (route == nullptr || route->state != AskRoute::State::kSettling || route->hello != hello) return;
  }
  Settle(route, AskRoute::State::kGrpc, why);
}

bool Routes::Refused(absl::string_view pair, absl::string_view from, absl::string_view why) {
  AskRoute* route;
  {
    std::shared_lock lock(mu_);
    route = FindAsk(pair);
    if (route == nullptr || route->producer != from || route->state == AskRoute::State::kNone) return false;
  }
  Settle(route, AskRoute::State::kGrpc, why);
  return true;
}

void Routes::Lost(AskRoute* route, absl::string_view why) {
  {
    std::shared_lock lock(mu_);
    if (route->state != AskRoute::State::kSealane) return;
  }
  Settle(route, AskRoute::State::kGrpc, why);
}

std::vector<std::string> Routes::Lost(absl::string_view producer, absl::string_view why) {
  std::vector<std::string> pairs;
  std::vector<AskRoute*> lost;
  {
    std::shared_lock lock(mu_);
    for (const auto& [pair, route] : asks_) {
      if (route->producer != producer || route->state != AskRoute::State::kSealane) continue;
      pairs.push_back(pair);
      lost.push_back(route.get());
    }
  }
  for (AskRoute* route : lost) Settle(route, AskRoute::State::kGrpc, why);
  return pairs;
}

bool Routes::UsesSealane(absl::string_view producer) {
  std::shared_lock lock(mu_);
  for (const auto& [pair, route] : asks_)
    if (route->producer == producer && route->state == AskRoute::State::kSealane) return true;
  return false;
}

void Routes::TryAgain() {
  std::lock_guard lock(mu_);
  for (auto& [pair, route] : asks_) route->next_hello = {};
}

void Routes::Settle(AskRoute* route, AskRoute::State state, absl::string_view why) {
  std::vector<std::function<void(Way)>> waiting;
  Way way = state == AskRoute::State::kSealane ? Way::kSealane : Way::kGrpc;
  {
    std::lock_guard lock(mu_);
    route->state = state;
    route->before = true;
    route->next_hello = Clock::now() + std::chrono::milliseconds(kRetryMs);
    waiting.swap(route->waiting);
  }
  if (changed) changed(route->peer, way, why);
  for (auto& each : waiting) each(way);
}

}  // namespace sealane_tensorflow
