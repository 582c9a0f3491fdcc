// Which way the tensors of a pair of devices go: agreed by message between their tasks, never guessed.
//
// The consumer decides, as it is the one that asks. Before it first asks a producer by Sealane it pushes a hello, which names both devices
// and the incarnation of the producer's. The producer then gives Sealane what that consumer has yet to get and all that comes later, and
// answers with a welcome. Until then, and if the hello is not taken within kSettleMs or not answered within kAnswerMs, the consumer asks by
// gRPC, which a producer always answers.
// So a producer needs to know nothing of the job's tasks; a restarted task is another one, as its devices have other incarnations; and no
// tensor is given to one transport and asked for by the other.
#ifndef SEALANE_TENSORFLOW_ROUTES_H_
#define SEALANE_TENSORFLOW_ROUTES_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "address_book.h"
#include "alone.h"
#include "tensorflow/core/framework/rendezvous.h"

namespace sealane_tensorflow {

enum class Way { kUnsettled, kSealane, kGrpc };

// A state machine shared by threads.
template <typename Machine>
class Locked {
 public:
  template <typename Call>
  auto operator()(Call call) {
    std::lock_guard lock(mu_);
    return call(machine_);
  }

 private:
  std::mutex mu_;
  Machine machine_ ABSL_GUARDED_BY(mu_);
};

// The devices of a pair and the producer's incarnation: "SOURCE;INCARNATION;DESTINATION;", the prefix of all TensorFlow keys of the pair.
absl::string_view PairOf(const tensorflow::Rendezvous::ParsedKey& key);

// Sends of this task to a device of another.
struct SendRoute {
  std::string pair;
  Peer* peer;
  // The task that asks by Sealane, by its attached name; empty before its hello. Guarded by Routes::mu_.
  std::string to;
  uint64_t hello = 0;  // The number of that hello. Guarded likewise.
  std::atomic<bool> settled{false};
  Locked<AloneSends> alone;
};

// Recvs of this task from a device of another.
struct AskRoute {
  enum class State { kNone, kSettling, kSealane, kGrpc };

  std::string pair;
  Peer* peer;
  // Guarded by Routes::mu_.
  State state = State::kNone;
  bool before = false;      // It has gone by gRPC: recvs do not wait for the answer.
  uint64_t hello = 0;       // Number of the last one, unique to this process.
  std::atomic<bool> said{false};  // A hello was pushed: the producer may hand over to Sealane.
  std::string producer;     // The task it was sent to.
  std::chrono::steady_clock::time_point next_hello;  // When to try again.
  std::vector<std::function<void(Way)>> waiting;
  Locked<AloneAsks> alone;
};

class Routes {
 public:
  // Timeout of a message. If it passes, the error says why.
  static constexpr int64_t kSettleMs = 1000;
  // How long to wait for the answer to a hello. Longer, so that the reason is known of a hello that is not taken.
  static constexpr int64_t kAnswerMs = 2 * kSettleMs;
  // How long a pair goes by gRPC before Sealane is tried again.
  static constexpr int64_t kRetryMs = 10000;
  // Most pairs of devices known; further ones go by gRPC.
  static constexpr size_t kPairs = 1 << 16;

  // `say_hello` pushes a hello to the peer of a route, and calls Refused if that fails.
  explicit Routes(std::function<void(AskRoute*)> say_hello) : say_hello_(std::move(say_hello)) {}

  // The route of a pair, valid as long as this; null if there are too many.
  SendRoute* OfSend(absl::string_view pair, const std::function<Peer*()>& peer);
  AskRoute* OfAsk(absl::string_view pair, const std::function<Peer*()>& peer);

  // Which way to ask. kUnsettled: `later` will be called with the way. `wait`: for the answer to a hello, even if it went by gRPC before.
  Way Ask(AskRoute* route, bool wait, std::function<void(Way)> later);

  // A consumer has said hello. Returns its route, or null and in `why` the reason to ask by gRPC. `before`: the task that asked until now,
  // if another: the consumer has moved, or another client has the same name.
  SendRoute* Hello(absl::string_view pair, absl::string_view from, uint64_t hello, const std::function<Peer*()>& peer, std::string* before,
                   std::string* why);

  // A consumer makes room for this many bytes of a key, under this hello. True if it is due an answer, see AloneSends::Add.
  bool GoesAlone(absl::string_view pair, absl::string_view from, uint64_t hello, absl::string_view key, size_t bytes);
  // The producer has agreed to that.
  void Agreed(absl::string_view pair, absl::string_view from, uint64_t hello, absl::string_view key);

  // The task whose hello settled a route, by its attached name.
  std::string ConsumerOf(SendRoute* route);

  std::string ProducerOf(AskRoute* route);
  // The pairs asked of a task.
  std::vector<std::string> PairsOf(absl::string_view producer);

  void Welcome(absl::string_view pair, absl::string_view from);
  // The producer refused a hello, or did not answer it.
  void Refused(absl::string_view pair, uint64_t hello, absl::string_view why);
  // The producer revokes a welcome. False if `from` is not the producer.
  bool Refused(absl::string_view pair, absl::string_view from, absl::string_view why);
  // Sealane has lost the producer, or this task's daemon.
  void Lost(AskRoute* route, absl::string_view why);
  // Sealane has lost the producer of these pairs. Returns the pairs that used Sealane.
  std::vector<std::string> Lost(absl::string_view producer, absl::string_view why);
  // Whether any pair is requested of this task over Sealane.
  bool UsesSealane(absl::string_view producer);

  // This task is attached, perhaps again: pairs that go by gRPC are tried again with their next tensor.
  void TryAgain();

  // Notes to whom the current hello goes; returns its number.
  uint64_t SayHelloTo(AskRoute* route, const std::string& producer);

  // Called when a pair changes its way.
  std::function<void(Peer*, Way, absl::string_view why)> changed;

 private:
  template <typename Route>
  Route* Of(absl::flat_hash_map<std::string, std::unique_ptr<Route>>& routes, absl::string_view pair, const std::function<Peer*()>& peer);
  AskRoute* FindAsk(absl::string_view pair) ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Settle(AskRoute* route, AskRoute::State state, absl::string_view why);

  const std::function<void(AskRoute*)> say_hello_;
  std::shared_mutex mu_;
  absl::flat_hash_map<std::string, std::unique_ptr<SendRoute>> sends_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::unique_ptr<AskRoute>> asks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ROUTES_H_
