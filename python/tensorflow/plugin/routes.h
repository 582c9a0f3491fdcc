// Which way the tensors of a pair of devices go: settled by a word between their tasks, never by a guess.
//
// The consumer decides, as it is the one that asks. Before it asks a producer by Sealane for the first time, it pushes a hello, which names
// the two devices and the producer's incarnation of its own; the producer then gives to Sealane what that consumer is still to get,
// and all that comes later, and answers with a welcome. Until then, and where no welcome comes within kSettleMs, the consumer asks by gRPC,
// which a producer always answers. So a producer needs to know nothing of the job's tasks, a task that was started anew is another one, as
// its devices have other incarnations, and no tensor is given to one transport and asked for by the other.
#ifndef SEALANE_TENSORFLOW_ROUTES_H_
#define SEALANE_TENSORFLOW_ROUTES_H_

#include <atomic>
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

// A state machine that several threads use.
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

// The devices of a pair and the producer's incarnation: "SOURCE;INCARNATION;DESTINATION;", as all of TensorFlow's keys of that pair begin.
absl::string_view PairOf(const tensorflow::Rendezvous::ParsedKey& key);

// What this task sends to a device of another.
struct SendRoute {
  std::string pair;
  Peer* peer;
  // The task that asks by Sealane, as it is attached; empty before its hello. Guarded by the mutex of the routes.
  std::string to;
  uint64_t hello = 0;  // The number that came with it. Guarded as well.
  std::atomic<bool> settled{false};
  Locked<AloneSends> alone;
};

// What this task asks a device of another for.
struct AskRoute {
  enum class State { kNone, kSettling, kSealane, kGrpc };

  std::string pair;
  Peer* peer;
  // Guarded by the mutex of the routes.
  State state = State::kNone;
  bool before = false;      // It has gone by gRPC: what is asked for now does not wait for the answer.
  uint64_t hello = 0;       // Number of the last one, which no other process has.
  std::atomic<bool> said{false};  // One was pushed: the producer may hand over to Sealane.
  std::string producer;     // The task that it was said to.
  uint64_t next_hello = 0;  // When to try again, in microseconds.
  std::vector<std::function<void(Way)>> waiting;
  Locked<AloneAsks> alone;
};

class Routes {
 public:
  // How long an answer is waited for.
  static constexpr int64_t kSettleMs = 1000;
  // How long a pair goes by gRPC before it is tried again.
  static constexpr int64_t kRetryMs = 10000;
  // Pairs of devices that are known at most; those beyond go by gRPC.
  static constexpr size_t kPairs = 1 << 16;

  // `say_hello` pushes a hello to the peer of a route, and calls Refused if that fails.
  explicit Routes(std::function<void(AskRoute*)> say_hello) : say_hello_(std::move(say_hello)) {}

  // The route of a pair, which lives as long as this; null if there are too many.
  SendRoute* OfSend(absl::string_view pair, const std::function<Peer*()>& peer);
  AskRoute* OfAsk(absl::string_view pair, const std::function<Peer*()>& peer);

  // Which way to ask. kUnsettled: `later` will be called with the way. `wait`: for the answer to a hello, also where it went by gRPC before.
  Way Ask(AskRoute* route, bool wait, std::function<void(Way)> later);

  // A consumer has said hello. Returns its route, or null with the reason why it is to ask by gRPC.
  // `before` is the task that asked until now, if it is another: it has moved, or is another client of the same name.
  SendRoute* Hello(absl::string_view pair, absl::string_view from, uint64_t hello, const std::function<Peer*()>& peer, std::string* before,
                   std::string* why);

  // A consumer makes room for so many bytes of a key, as it is since this hello. True if it is to be told so, see AloneSends::Add.
  bool GoesAlone(absl::string_view pair, absl::string_view from, uint64_t hello, absl::string_view key, size_t bytes);
  // The producer has agreed to that.
  void Agreed(absl::string_view pair, absl::string_view from, uint64_t hello, absl::string_view key);

  // The task whose hello settled a route, as it is attached.
  std::string ConsumerOf(SendRoute* route);

  // The task that is asked.
  std::string ProducerOf(AskRoute* route);
  // The pairs that are asked of a task.
  std::vector<std::string> PairsOf(absl::string_view producer);

  void Welcome(absl::string_view pair, absl::string_view from);
  // A hello is refused by the producer, or had no answer.
  void Refused(absl::string_view pair, uint64_t hello, absl::string_view why);
  // The producer takes a welcome back.
  // False if `from` is not the producer.
  bool Refused(absl::string_view pair, absl::string_view from, absl::string_view why);
  // Sealane has lost the producer, or this task's daemon.
  void Lost(AskRoute* route, absl::string_view why);

  // This task is attached, perhaps anew: what goes by gRPC is tried again with its next tensor.
  void TryAgain();

  // Notes to whom the hello is said that is under way; returns its number.
  uint64_t SayHelloTo(AskRoute* route, const std::string& producer);

  // How a pair goes has changed.
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
