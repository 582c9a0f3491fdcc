#include "endpoint.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "keeper.h"
#include "step.h"
#include "tensorflow/core/platform/logging.h"
#include "tensorflow/core/platform/status.h"
#include "tensors.h"

namespace sealane_tensorflow {
namespace {

// Queue of a task into which other servers push messages.
constexpr char kQueue[] = "sealane.tensorflow";
// Attempts for a message that a live task must hear, one per Routes::kSettleMs.
constexpr int kTries = 60;
// Messages accepted at once.
constexpr size_t kMessages = 64;
// Longest message; longer ones are ignored.
constexpr size_t kMessageBytes = 16 << 10;
// Longest watch of a producer; the next one follows. A daemon that drains waits for a watch of its clients as for any recv.
constexpr int64_t kWatchMs = 1000;
// Retry interval for what needs the daemon.
constexpr int64_t kAgainMs = 2000;
// Retry interval for attaching while the endpoint map does not name the task: someone would have to change the map.
constexpr int64_t kUnmappedAgainMs = 30000;
// Messages of one sweep about a step's untaken tensors for one device; each fits about 700 tensors.
constexpr size_t kHeldMessages = 32;

// A message is lines: its kind and version, then the fields below.
constexpr char kHello[] = "hello5";      // Pair, number: I ask by Sealane from now on.
constexpr char kWelcome[] = "welcome5";  // Pair: go ahead.
constexpr char kRefuse[] = "refuse1";    // Pair, reason: ask by gRPC.
constexpr char kUnsentTo[] = "unsent2";  // Step, number, key: ask by gRPC.
constexpr char kAlone[] = "alone1";      // Pair, hello number, room in bytes, key: what fits may come alone, see alone.h.
constexpr char kAgreed[] = "agreed1";    // Pair, hello number, key: the answer to alone1.
constexpr char kHeld[] = "held1";        // Step, kind of step, pair, lines: not taken yet, see held.h.
constexpr char kAbort[] = "abort1";      // Step, kind of step, code, message: it has failed here.

uint64_t NumberOf(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  uint64_t number;
  if (text == nullptr || *text == '\0') return otherwise;
  if (absl::SimpleAtoi(text, &number)) return number;
  LOG(ERROR) << "Sealane: " << variable << " is not a number: " << text;
  return otherwise;
}

// The host's memory is taken on first use only.
constexpr uint64_t kArenaBytes = uint64_t{1} << 30;

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (char each : text) {
    if (each == '"' || each == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(each) < 0x20 ? ' ' : each;
  }
  return quoted + "\"";
}

std::string InJson(const Traffic& traffic) {
  return absl::StrCat("{\"sent_tensors\":", traffic.sent.tensors.load(), ",\"sent_bytes\":", traffic.sent.bytes.load(),
                      ",\"received_tensors\":", traffic.received.tensors.load(), ",\"received_bytes\":", traffic.received.bytes.load(), "}");
}

}  // namespace

std::shared_ptr<Endpoint> Endpoint::Make(std::string name, std::string address, std::function<bool(uint64_t)> is_mine) {
  return std::shared_ptr<Endpoint>(new Endpoint(std::move(name), std::move(address), std::move(is_mine)));
}

Endpoint::Endpoint(std::string name, std::string address, std::function<bool(uint64_t)> is_mine)
    : name_(std::move(name)),
      address_(std::move(address)),
      is_mine_(std::move(is_mine)),
      routes_([this](AskRoute* route) { SayHello(route); }) {
  routes_.changed = [this](Peer* peer, Way way, absl::string_view why) {
    absl::ConsumePrefix(&why, "Sealane: ");  // The log's line begins with it.
    peer->SetRoute(name_, way == Way::kSealane ? "sealane" : "grpc", why);
  };
}

Endpoint::~Endpoint() {
  arena_->Forget();
  sealane_task* task = task_.load();
  if (task == nullptr) return;
  // Not here: detaching waits for callbacks of the task, and this may run in one.
  tensorflow::Env::Default()->SchedClosure([task] { sealane_detach(task); });
}

void Endpoint::Close() {
  std::lock_guard lock(mu_);
  is_mine_ = nullptr;
}

bool Endpoint::IsMine(uint64_t incarnation) {
  std::lock_guard lock(mu_);
  return is_mine_ != nullptr && is_mine_(incarnation);
}

void Endpoint::TryAgain(int64_t milliseconds, std::function<void(Endpoint*)> what) {
  Keeper::Get()->After(milliseconds, [weak = weak_from_this(), what = std::move(what)] {
    // Not on the keeper's thread: a hung daemon would block it.
    tensorflow::Env::Default()->SchedClosure([weak, what] {
      if (auto endpoint = weak.lock()) what(endpoint.get());
    });
  });
}

void Endpoint::Attach() {
  sealane_attach_options options = {};
  options.size = sizeof options;
  const char* socket = std::getenv("SEALANE_TF_SOCKET");
  options.socket = socket != nullptr && *socket != '\0' ? socket : nullptr;
  options.arena_bytes = NumberOf("SEALANE_TF_ARENA_BYTES", kArenaBytes);
  // While the daemon is away calls fail, and with them steps; TensorFlow restarts those.
  options.restart_timeout_ms = SEALANE_DO_NOT_WAIT;
  sealane_task* task = nullptr;
  absl::Status status = Take(sealane_attach(address_.c_str(), &options, &task));
  if (!status.ok()) {
    const bool unmapped = absl::IsNotFound(status);
    {
      std::lock_guard lock(mu_);
      unattached_ = unmapped ? "the endpoint map does not name this task" : std::string(status.message());
    }
    LOG_EVERY_N_SEC(WARNING, 60) << "Sealane: " << name_ << " (" << address_ << ") goes by gRPC: " << status.message()
                                 << (unmapped ? "" : "; tried again until the daemon is there");
    return TryAgain(unmapped ? kUnmappedAgainMs : kAgainMs, [](Endpoint* endpoint) { endpoint->Attach(); });
  }
  task_.store(task, std::memory_order_release);
  LOG(INFO) << "Sealane: " << name_ << " is attached as " << address_;
  Listen();
  Sweep();
}

void Endpoint::Sweep() {
  Keeper::Get()->After(kSweepMs, [weak = weak_from_this()] {
    auto endpoint = weak.lock();
    if (endpoint == nullptr) return;
    if (endpoint->AllSteps().empty()) return endpoint->Sweep();
    endpoint->TryAgain(0, [](Endpoint* endpoint) {
      for (auto& step : endpoint->AllSteps()) step->TellHeld();
      endpoint->Sweep();
    });
  });
}

void Endpoint::SentByGrpc(Peer* peer, size_t bytes) {
  peer->by_grpc.sent.Add(bytes);
  NoteElsewhere(*peer, SEALANE_SENT, bytes);
}

void Endpoint::ReceivedByGrpc(Peer* peer, size_t bytes) {
  peer->by_grpc.received.Add(bytes);
  NoteElsewhere(*peer, SEALANE_RECEIVED, bytes);
}

void Endpoint::NoteElsewhere(const Peer& peer, int32_t direction, size_t bytes) {
  const std::string address = peer.Address();
  if (task() == nullptr || address.empty()) return;
  sealane_error_free(sealane_note_elsewhere(task(), TextOf(address), direction, 1, bytes));
}

void Endpoint::Listen() {
  arena_->Use(task());
  routes_.TryAgain();
  sealane_acceptor* queue = nullptr;
  absl::Status status = Take(sealane_acceptor_open(task(), TextOf(kQueue), nullptr, &queue));
  if (!status.ok()) {
    LOG_EVERY_N_SEC(WARNING, 60) << "Sealane: " << name_ << " cannot receive messages from other tasks: " << status.message() << "; tried again";
    return TryAgain(kAgainMs, [](Endpoint* endpoint) { endpoint->Listen(); });
  }
  Accept(std::shared_ptr<sealane_acceptor>(queue, [](sealane_acceptor* queue) {
    // Closing waits for callbacks, and this may run in one.
    tensorflow::Env::Default()->SchedClosure([queue] { sealane_acceptor_close(queue); });
  }));
}

namespace {

struct Accepting {
  std::weak_ptr<Endpoint> endpoint;
  std::shared_ptr<sealane_acceptor> queue;
};

}  // namespace

void Endpoint::Accept(const std::shared_ptr<sealane_acceptor>& queue) {
  auto* accepting = new Accepting{weak_from_this(), queue};
  absl::Status status = Take(sealane_accept(queue.get(), kMessages, SEALANE_NO_TIMEOUT, Accepted, accepting, nullptr));
  if (status.ok()) return;
  delete accepting;
  TryAgain(kAgainMs, [](Endpoint* endpoint) { endpoint->Listen(); });
}

void Endpoint::Accepted(void* context, const sealane_error* error, sealane_tensor* const* tensors, size_t count) {
  std::unique_ptr<Accepting> accepting(static_cast<Accepting*>(context));
  std::shared_ptr<Endpoint> endpoint = accepting->endpoint.lock();
  for (size_t i = 0; i < count; ++i) {
    sealane_view view = sealane_tensor_view(tensors[i]);
    const char* from = sealane_tensor_from(tensors[i]);
    if (endpoint != nullptr && from != nullptr && view.bytes <= kMessageBytes) {
      endpoint->Heard(from, absl::string_view(static_cast<const char*>(view.data), view.bytes));
    }
    sealane_tensor_free(tensors[i]);
  }
  if (endpoint == nullptr || sealane_error_code(error) == SEALANE_CODE_CANCELLED) return;
  if (error == nullptr) return endpoint->Accept(accepting->queue);
  LOG(WARNING) << "Sealane: " << endpoint->name_ << " receives no messages from other tasks: " << sealane_error_message(error) << "; tried again";
  endpoint->TryAgain(kAgainMs, [](Endpoint* endpoint) { endpoint->Listen(); });
}

// --- What tasks say to each other ---------------------------------------------------------------------------------------------------------

namespace {

struct Pushing {
  std::function<void(const absl::Status&)> failed;
};

void Pushed(void* context, const sealane_error* error) {
  std::unique_ptr<Pushing> pushing(static_cast<Pushing*>(context));
  if (error != nullptr && pushing->failed) pushing->failed(StatusOf(error));
}

}  // namespace

void Endpoint::Push(const std::string& to, std::string message, std::function<void(const absl::Status&)> failed) {
  uint64_t dims[] = {message.size()};
  sealane_source source = {{SEALANE_OPAQUE, 8, 1, 0, 1, 0, dims}, message.data(), message.size(), nullptr, nullptr};
  auto pushing = std::make_unique<Pushing>(Pushing{std::move(failed)});
  absl::Status status = task() == nullptr
                            ? absl::UnavailableError("this task is not attached to a Sealane daemon")
                            : Take(sealane_push(task(), TextOf(to), TextOf(kQueue), &source, 1, Routes::kSettleMs, Pushed, pushing.get(), nullptr));
  if (status.ok()) {
    pushing.release();
  } else if (pushing->failed) {
    pushing->failed(status);
  }
}

void Endpoint::PushAgain(const std::string& to, const std::string& message, int tries, std::function<bool(Endpoint*)> still) {
  Push(to, message, [weak = weak_from_this(), to, message, tries, still = std::move(still)](const absl::Status&) {
    if (tries <= 1) return;
    Keeper::Get()->After(Routes::kSettleMs, [=] {
      auto endpoint = weak.lock();
      if (endpoint != nullptr && still(endpoint.get())) endpoint->PushAgain(to, message, tries - 1, still);
    });
  });
}

void Endpoint::SayHello(AskRoute* route) {
  const std::string to = route->peer->Address();
  const uint64_t hello = routes_.SayHelloTo(route, to);
  auto refused = [weak = weak_from_this(), pair = route->pair, hello](absl::string_view why) {
    if (auto endpoint = weak.lock()) endpoint->routes_.Refused(pair, hello, why);
  };
  if (task() == nullptr) {
    std::unique_lock lock(mu_);
    const std::string why = unattached_;
    lock.unlock();
    return refused(why);
  }
  if (to.empty()) return refused("its address is not known");
  Keeper::Get()->After(Routes::kAnswerMs, [refused] { refused("no answer in two seconds"); });
  route->said = true;
  route->alone([&](AloneAsks& alone) { alone.Doubt(hello); });
  for (auto& step : AllSteps()) step->AwaitAll(route->pair);
  Push(to, absl::StrCat(kHello, "\n", route->pair, "\n", absl::Hex(hello)), [refused](const absl::Status& status) { refused(status.message()); });
}

namespace {

struct Watching {
  std::weak_ptr<Endpoint> endpoint;
  std::string producer;
};

// No rendezvous and no collective has this step, so no cleanup ends a watch.
constexpr int64_t kWatchStep = INT64_MIN;

}  // namespace

void Endpoint::Watch(const std::string& producer) {
  if (!routes_.UsesSealane(producer)) return;
  {
    std::lock_guard lock(mu_);
    if (is_mine_ == nullptr) return;  // The server has ended.
    if (!watched_.insert(producer).second) return;
  }
  auto watching = std::make_unique<Watching>(Watching{weak_from_this(), producer});
  absl::Status status =
      Take(sealane_recv_fail_if_gone(task(), TextOf(producer), kWatchStep, TextOf(kQueue), nullptr, kWatchMs, Watched, watching.get(), nullptr));
  if (status.ok()) {
    watching.release();
  } else {  // No callback comes.
    WatchEnded(producer, status);
  }
}

void Endpoint::Watched(void* context, const sealane_error* error, sealane_tensor* came) {
  std::unique_ptr<Watching> watching(static_cast<Watching*>(context));
  sealane_tensor_free(came);
  if (auto endpoint = watching->endpoint.lock()) endpoint->WatchEnded(watching->producer, StatusOf(error));
}

void Endpoint::WatchEnded(const std::string& producer, const absl::Status& status) {
  {
    std::lock_guard lock(mu_);
    watched_.erase(producer);
  }
  if (absl::IsDeadlineExceeded(status)) return Watch(producer);
  if (!absl::IsUnavailable(status)) return TryAgain(kWatchMs, [producer](Endpoint* endpoint) { endpoint->Watch(producer); });
  const std::vector<std::string> lost = routes_.Lost(producer, status.message());
  // Recvs that were in flight at the loss have failed by then, as their tensors may be lost. Recvs that were requested just after the loss
  // may wait for the next daemon.
  TryAgain(Routes::kSettleMs, [producer, lost](Endpoint* endpoint) {
    if (endpoint->routes_.UsesSealane(producer)) return;
    for (const std::string& pair : lost)
      for (auto& step : endpoint->AllSteps()) step->Refused(pair);
  });
}

void Endpoint::HeardHello(absl::string_view from, absl::string_view pair, absl::string_view number) {
  std::string before, why;
  SendRoute* route = nullptr;
  uint64_t hello = 0;
  std::vector<absl::string_view> parts = absl::StrSplit(pair, ';');
  tensorflow::DeviceNameUtils::ParsedName consumer;
  uint64_t incarnation = 0;
  if (parts.size() != 4 || !absl::SimpleHexAtoi(parts[1], &incarnation) || !absl::SimpleHexAtoi(number, &hello) ||
      !tensorflow::DeviceNameUtils::ParseFullName(parts[2], &consumer) || !consumer.has_job || !consumer.has_task) {
    why = "the hello is not understood: is it another release of Sealane's plugin?";
  } else if (!IsMine(incarnation)) {
    why = "another task answers there than was meant: it may have been restarted";
  } else {
    route = routes_.Hello(pair, from, hello, [&] { return book_.Find(consumer); }, &before, &why);
  }
  const std::string to(from);
  if (route == nullptr) return Push(to, absl::StrCat(kRefuse, "\n", pair, "\n", why), nullptr);
  if (!before.empty()) PushAgain(before, absl::StrCat(kRefuse, "\n", pair, "\n", to, " has the same name"), kTries, [](Endpoint*) { return true; });
  {
    std::lock_guard lock(mu_);
    ++consumers_[to];
  }
  // Before the welcome, so that what the consumer then asks for is there.
  for (auto& step : AllSteps()) step->Settled(pair);
  route->peer->SetRoute(name_, "sealane", "");
  Push(to, absl::StrCat(kWelcome, "\n", pair), nullptr);
}

void Endpoint::Heard(absl::string_view from, absl::string_view message) {
  std::pair<absl::string_view, absl::string_view> kind = absl::StrSplit(message, absl::MaxSplits('\n', 1));
  std::pair<absl::string_view, absl::string_view> rest = absl::StrSplit(kind.second, absl::MaxSplits('\n', 1));
  if (kind.first == kHello) return HeardHello(from, rest.first, rest.second);
  if (kind.first == kWelcome) {
    routes_.Welcome(kind.second, from);
    return Watch(std::string(from));
  }
  if (kind.first == kRefuse) {
    if (!routes_.Refused(rest.first, from, absl::CHexEscape(rest.second))) return;
    for (auto& step : AllSteps()) step->Refused(rest.first);
    return;
  }
  if (kind.first == kAlone) return HeardAlone(from, rest.first, rest.second);
  if (kind.first == kAgreed) {
    std::pair<absl::string_view, absl::string_view> what = absl::StrSplit(rest.second, absl::MaxSplits('\n', 1));
    uint64_t hello;
    if (absl::SimpleHexAtoi(what.first, &hello)) routes_.Agreed(rest.first, from, hello, what.second);
    return;
  }
  int64_t id;
  if ((kind.first != kUnsentTo && kind.first != kHeld && kind.first != kAbort) || !absl::SimpleAtoi(rest.first, &id)) {
    LOG_EVERY_N_SEC(WARNING, 10) << "Sealane: " << from
                                 << " has said something that is not understood: is it another release of Sealane's plugin?";
    return;
  }
  if (kind.first == kUnsentTo) return HeardUnsent(from, id, rest.second);
  if (kind.first == kHeld) return HeardHeld(from, id, rest.second);
  std::vector<absl::string_view> error = absl::StrSplit(rest.second, absl::MaxSplits('\n', 2));
  int of, code;
  if (error.size() != 3 || !absl::SimpleAtoi(error[0], &of) || !absl::SimpleAtoi(error[1], &code) || code <= 0 ||
      code > static_cast<int>(absl::StatusCode::kUnauthenticated)) {
    return;
  }
  // Derived, as the producer itself reports the original error to the step's runner.
  absl::Status status =
      tensorflow::StatusGroup::MakeDerived(absl::Status(static_cast<absl::StatusCode>(code), absl::CHexEscape(error[2])));
  for (auto& step : Steps(id))
    if (static_cast<int>(step->of()) == of) step->AbortedBy(from, status);
}

void Endpoint::HeardAlone(absl::string_view from, absl::string_view pair, absl::string_view rest) {
  std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('\n', 2));
  uint64_t hello, bytes;
  if (parts.size() != 3 || !absl::SimpleHexAtoi(parts[0], &hello) || !absl::SimpleAtoi(parts[1], &bytes) || !Step::Fits(parts[2])) return;
  if (!routes_.GoesAlone(pair, from, hello, parts[2], bytes)) return;
  // Its deleter sends "agreed1" once the last sending that holds it is gone.
  std::shared_ptr<void> agreement(nullptr, [weak = weak_from_this(), to = std::string(from),
                                            message = absl::StrCat(kAgreed, "\n", pair, "\n", parts[0], "\n", parts[2])](void*) {
    if (auto endpoint = weak.lock()) endpoint->Push(to, message, nullptr);
  });
  for (auto& step : AllSteps()) step->Agree(pair, parts[2], agreement);
}

void Endpoint::HeardUnsent(absl::string_view from, int64_t id, absl::string_view rest) {
  std::pair<absl::string_view, absl::string_view> what = absl::StrSplit(rest, absl::MaxSplits('\n', 1));
  uint32_t number;
  // A key that does not fit is never asked for by Sealane; its note would only stay.
  if (!absl::SimpleAtoi(what.first, &number) || number > UINT8_MAX || !Step::Fits(what.second)) return;
  if (!unsent_.Add(from, id, what.second, static_cast<uint8_t>(number))) {
    // Recvs would wait forever for what was forgotten.
    for (const std::string& pair : routes_.PairsOf(from)) {
      routes_.Refused(pair, from, "it has left more tensors for gRPC than are noted");
      for (auto& step : AllSteps()) step->Refused(pair);
    }
    return;
  }
  bool found = false;
  for (auto& step : Steps(id)) found = step->Unsent(from, what.second, static_cast<uint8_t>(number)) || found;
  if (found) unsent_.Take(from, id, what.second, static_cast<uint8_t>(number));
}

void Endpoint::HeardHeld(absl::string_view from, int64_t id, absl::string_view rest) {
  std::vector<absl::string_view> parts = absl::StrSplit(rest, absl::MaxSplits('\n', 2));
  int of;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &of)) return;
  const HeldTensors held = ReadHeld(parts[2]);
  for (auto& step : Steps(id))
    if (static_cast<int>(step->of()) == of) step->Held(parts[1], from, held);
}

size_t Endpoint::TellHeld(const std::string& to, const Step& step, const std::string& pair, const std::vector<std::string>& lines) {
  const std::string head = absl::StrCat(kHeld, "\n", step.id(), "\n", static_cast<int>(step.of()), "\n", pair);
  auto line = lines.begin();
  for (size_t messages = 0; messages < kHeldMessages && line != lines.end(); ++messages) {
    std::string message = head;
    do {
      absl::StrAppend(&message, "\n", *line);
    } while (++line != lines.end() && message.size() + 1 + line->size() <= kMessageBytes);
    Push(to, std::move(message), nullptr);
  }
  return line - lines.begin();
}

void Endpoint::Enter(Step* step) {
  std::lock_guard lock(mu_);
  steps_[step->id()].steps.insert(step);
}

bool Endpoint::Leave(Step* step, bool unclean) {
  std::lock_guard lock(mu_);
  auto found = steps_.find(step->id());
  if (found == steps_.end()) return unclean;
  found->second.unclean |= unclean;
  found->second.steps.erase(step);
  if (!found->second.steps.empty()) return false;
  unclean = found->second.unclean;
  steps_.erase(found);
  unsent_.Forget(step->id());
  return unclean;
}

std::vector<tensorflow::core::RefCountPtr<Step>> Endpoint::Steps(int64_t id) {
  std::vector<tensorflow::core::RefCountPtr<Step>> steps;
  std::lock_guard lock(mu_);
  auto found = steps_.find(id);
  if (found == steps_.end()) return steps;
  for (Step* step : found->second.steps) {
    step->Ref();
    steps.emplace_back(step);
  }
  return steps;
}

std::vector<tensorflow::core::RefCountPtr<Step>> Endpoint::AllSteps() {
  std::vector<tensorflow::core::RefCountPtr<Step>> steps;
  std::lock_guard lock(mu_);
  for (auto& [id, under_way] : steps_) {
    for (Step* step : under_way.steps) {
      step->Ref();
      steps.emplace_back(step);
    }
  }
  return steps;
}

void Endpoint::TellUnsent(const std::string& to, int64_t step, uint8_t number, const std::string& key) {
  PushAgain(to, absl::StrCat(kUnsentTo, "\n", step, "\n", int{number}, "\n", key), INT_MAX,
            [step](Endpoint* endpoint) { return !endpoint->Steps(step).empty(); });
}

void Endpoint::CameAnnounced(AskRoute* route, const std::string& key, size_t bytes) {
  uint64_t hello;
  const size_t room = route->alone([&](AloneAsks& alone) {
    hello = alone.hello();
    return alone.Announced(key, bytes);
  });
  if (room == 0) return;
  for (auto& step : AllSteps()) step->AskAlone(route->pair, key);
  Push(routes_.ProducerOf(route), absl::StrCat(kAlone, "\n", route->pair, "\n", absl::Hex(hello), "\n", room, "\n", key),
       [weak = weak_from_this(), route, key](const absl::Status&) {
         if (auto endpoint = weak.lock()) route->alone([&](AloneAsks& alone) { alone.NotTold(key); });
       });
}

void Endpoint::TellAborted(const Step& step, const absl::Status& status) {
  absl::flat_hash_map<std::string, int> consumers;
  {
    std::lock_guard lock(mu_);
    consumers = consumers_;
  }
  const std::string message = absl::StrCat(kAbort, "\n", step.id(), "\n", static_cast<int>(step.of()), "\n", static_cast<int>(status.code()),
                                           "\n", status.message().substr(0, kMessageBytes / 2));
  // Steps are also ended by their master. Nobody else reports a failed collective, and a consumer would wait for the next one forever.
  const int tries = step.of() == Step::Of::kCollective ? kTries : 1;
  for (const auto& [to, hellos] : consumers) {
    PushAgain(to, message, tries, [to = to, hellos = hellos, id = step.id()](Endpoint* endpoint) {
      for (auto& each : endpoint->Steps(id))
        if (each->of() == Step::Of::kCollective && !each->ended()) return false;  // Collectives of this step have started again.
      std::lock_guard lock(endpoint->mu_);
      return endpoint->consumers_[to] == hellos;  // Else it has restarted.
    });
  }
}

std::string Endpoint::Report() const {
  std::string pairs;
  for (Peer* peer : book_.All()) {
    if (peer->name == name_) continue;
    auto [route, why] = peer->Route();
    absl::StrAppend(&pairs, pairs.empty() ? "" : ",", "{\"peer\":", Quoted(peer->name), ",\"address\":", Quoted(peer->Address()),
                    ",\"route\":", Quoted(route), ",\"why\":", Quoted(why), ",\"sealane\":", InJson(peer->by_sealane),
                    ",\"grpc\":", InJson(peer->by_grpc), ",\"unmet\":", peer->unmet.load(), "}");
  }
  size_t steps;
  {
    std::lock_guard lock(mu_);
    steps = steps_.size();
  }
  return absl::StrCat("{\"task\":", Quoted(address_), ",\"name\":", Quoted(name_), ",\"attached\":", task() != nullptr ? "true" : "false",
                      ",\"steps\":", steps, ",\"pairs\":[", pairs, "]}");
}

}  // namespace sealane_tensorflow
