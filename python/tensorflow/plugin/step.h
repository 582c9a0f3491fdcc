// A step's sends to and recvs from other tasks.
#ifndef SEALANE_TENSORFLOW_STEP_H_
#define SEALANE_TENSORFLOW_STEP_H_

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "alone.h"
#include "bundle.h"
#include "endpoint.h"
#include "held.h"
#include "sealane.h"
#include "tensorflow/core/lib/core/refcount.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensors.h"

namespace sealane_tensorflow {

// A tensor being sent to another task.
class Sending {
 public:
  Sending(absl::string_view key, tensorflow::Tensor tensor, bool dead) : key(key), tensor(std::move(tensor)), dead(dead) {}
  virtual ~Sending() = default;

  // Brings the tensor into host memory if it is not there, then calls `done`, now or later.
  virtual void Stage(std::function<void(const absl::Status&)> done) { done(absl::OkStatus()); }
  // Leaves the tensor where TensorFlow's gRPC services look for it. At most once, and not during staging.
  virtual void LeaveForGrpc() = 0;
  // The consumer has it, it was left for gRPC, or (with an error) the step has ended. Only the destructor is called afterwards.
  virtual void Ended(const absl::Status& status) = 0;

  const std::string key;
  tensorflow::Tensor tensor;
  const bool dead;

 private:
  friend class Step;
  enum class State {
    kHeld,     // No consumer has said hello for it.
    kStaging,  // Being brought into host memory.
    kReady,    // To be handed to Sealane.
    kSent,     // Sealane has it or a part of it.
    kTaken,    // The consumer has it. Sealane may still have an entry of it.
    kLeft,     // Left for gRPC. Sealane may still have it too.
  };
  SendRoute* route = nullptr;
  Outgoing outgoing;
  uint8_t number = 0;    // See Step::NumberOf.
  std::string data_key;  // Empty if whole in a bundle.
  // Guarded by the step's mutex.
  State state = State::kHeld;
  bool leave = false;       // To be left for gRPC once staged.
  Form form = Form::kWhole;
  bool described = false;   // Its bytes carry type and shape, and so are all of it.
  bool failed = false;      // One of its parts failed.
  Parts out = {};           // Parts the consumer does not have.
  int sweeps = 0;           // See Step::TellHeld.
  std::shared_ptr<void> agreement;  // See Step::Agree.
  int uses = 1;             // One each for its place in the step, staging, parts under way, and lent memory.
  Sending* next = nullptr;  // The next under the same key.
};

class Asking;

// Ref-counted: held by calls under way, and by its owner until End.
class Step : public tensorflow::core::RefCounted {
 public:
  enum class Of { kRendezvous, kCollective };
  // `pool`: hands out tensors that come many at once; null: Sealane's thread does.
  Step(std::shared_ptr<Endpoint> endpoint, Of of, int64_t id, tensorflow::thread::ThreadPool* pool);

  Of of() const { return of_; }
  int64_t id() const { return id_; }
  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

  // The key of a pair's bundles, separate for each kind of step.
  static std::string BundlesKey(absl::string_view pair, Of of);

  // Whether Sealane takes a key of this length. Longer ones go by gRPC, which both sides see.
  static bool Fits(absl::string_view key);

  using PeerOf = std::function<Peer*()>;

  // Sends under the key of `sending`, after earlier sends of that key have ended. Never waits. `peer`: the consumer.
  void Send(absl::string_view pair, const PeerOf& peer, std::unique_ptr<Sending> sending);
  // The consumer asks for a key by gRPC: the current send of it, or the next, is left there.
  void AskedByGrpc(absl::string_view key);
  // A tensor was left for gRPC without Send.
  void LeftForGrpc(absl::string_view key);
  // Asks for the key of `asking`, after earlier recvs of that key have come. `peer`: the producer. Takes over a reference.
  void Ask(absl::string_view pair, const PeerOf& peer, Asking* asking);

  // The owner has failed or is gone: ends the sends. The owner cancels its recvs before.
  void End();
  bool ended();

  // A consumer has said hello.
  void Settled(absl::string_view pair);
  // This task says hello: bundles may have entries for what is awaited alone.
  void AwaitAll(absl::string_view pair);
  // A producer has left a key for gRPC. False if the key was not asked for yet.
  bool Unsent(absl::string_view producer, absl::string_view key, uint8_t number);
  // Tells the consumer that it need not await bundles with a key, once the tensors now out are gone: they hold `agreement`.
  void Agree(absl::string_view pair, absl::string_view key, const std::shared_ptr<void>& agreement);
  // The producer is about to hear that it may send a key alone: a recv awaiting it in bundles also asks for it under DataKey.
  void AskAlone(absl::string_view pair, absl::string_view key);
  // Tells consumers what has been out for a while; called every Endpoint::kSweepMs.
  void TellHeld();
  // A producer has had these tensors out for a while. Recvs that await them another way than they are sent go by gRPC, lest they wait
  // forever.
  void Held(absl::string_view pair, absl::string_view from, const HeldTensors& held);
  // A producer sends no more of a pair by Sealane, or Sealane has lost it.
  void Refused(absl::string_view pair);
  // The step has failed at a producer, for good.
  void AbortedBy(absl::string_view producer, const absl::Status& status);

 private:
  friend class Asking;
  using Clock = std::chrono::steady_clock;
  // Sends to one device, gathered while earlier ones are handed over.
  struct SendLane {
    SendRoute* route;
    std::string bundles;                           // The key of its bundles.
    std::vector<Sending*> held, ready, unbundled;  // `unbundled`: waiting for the bundle under way; at most one is.
    bool bundling = false;
    bool flushing = false;
    Clock::time_point flushed;
    std::string told;  // The last line reported; used by TellHeld only.
  };
  // Recvs from one device.
  struct AskLane {
    AskRoute* route;
    std::string bundles;
    int asked = 0;                // Askings that have not ended.
    int awaited = 0;              // Of those, askings that await a bundle entry.
    bool by_sealane = false;      // Until no asking is left.
    // Askings that went by gRPC although a bundle may have an entry for them. While there are any, no bundle is asked for: it would take
    // that entry away from where gRPC looks for it.
    int blind = 0;
    bool refused = false;         // The producer has revoked its welcome, and a bundle is under way.
    bool spoiled = false;         // See Spoil.
    std::string from;             // The task asked by Sealane.
    bool settling = false;
    std::vector<Asking*> unsettled;
    std::vector<Asking*> sized;   // To ask for their data before it is announced. Holds references.
    bool flushing = false;
    Clock::time_point flushed;
    bool receiving = false;       // A bundle is asked for.
    sealane_call* bundle = nullptr;
    uint64_t received = 0;
    int postponed = 0;            // How often in a row a bundle was asked for in vain.
    // By key: entries that came before they were asked for.
    absl::flat_hash_map<std::string, std::vector<Parked>> parked;
    size_t parked_bytes = 0;
  };
  struct Call {
    bool ended = false;
    int attempt = 0;
    sealane_call* handle = nullptr;
  };

  ~Step() override = default;

  // How many tensors of a key this step had before, by either transport, modulo 256. Both sides count alike, so that a call or a message
  // about one is never taken for the next of the same key.
  uint8_t NumberOf(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountOne(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountLeft(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SendLane* LaneOfSend(absl::string_view pair, const PeerOf& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  AskLane* LaneOfAsk(absl::string_view pair, const PeerOf& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Removes the first sending of a key, for the caller to end. `next`, if any, is for the caller to start.
  SendLane* TakeAway(Sending* sending, Sending** next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(SendLane* lane, Sending* sending);
  void Staged(SendLane* lane, Sending* sending, absl::Status status);
  Form FormOf(SendLane* lane, const Sending& sending);
  // Puts its bytes where this form sends them from.
  absl::Status Prepare(Sending* sending, Form form);
  void Flush(SendLane* lane);
  struct Bundle;
  absl::Status HandOver(const BundleWriter& writer, const std::string& to, Bundle* bundle);
  // Sends bytes under DataKey.
  void SendData(const std::string& to, const std::vector<Sending*>& ready);
  // Sends the next bundle, if none is under way.
  void SendBundle(SendLane* lane, const std::string& to);
  // A part has reached the consumer, or never will.
  void PartEnded(Sending* sending, bool Parts::*part, const absl::Status& status);
  void Fail(Sending* sending, const absl::Status& status);
  // Removes it from what its lane gathers.
  static void Forget(SendLane* lane, Sending* sending);
  // Has Sealane forget the step.
  void CleanUp();
  // The same if the step has ended: its clean-up may have come before what was just handed over.
  void CleanUpIfEnded();
  // Leaves for gRPC what was taken away, and starts `next`.
  void Leave(SendLane* lane, Sending* sending, Sending* next);
  void Unuse(Sending* sending);
  struct Part;
  static void PartDone(void* context, const sealane_error* error);
  static void PartReleased(void* context);
  static void BundleDone(void* context, const sealane_error* error);

  // Its turn has come. `way`: as just settled.
  void Start(AskLane* lane, Asking* asking, Way way = Way::kUnsettled);
  void Settle(AskLane* lane);
  void StartUnsettled(AskLane* lane, Way way);
  // Starts again what waits in a spoiled lane.
  void StartUnsettledIfSpoiled(AskLane* lane);
  // A bundle may have an entry for it, or has brought it already.
  void Await(AskLane* lane, Asking* asking);
  void AwaitAll(AskLane* lane);
  std::optional<Parked> TakeParked(AskLane* lane, const Asking& asking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks for its data, whose size is known from an earlier step.
  void AskAlone(AskLane* lane, Asking* asking);
  // Asks for the data of those in `sized`.
  void Flush(AskLane* lane);
  // Flushes now, or soon if it just has.
  template <typename Lane>
  void FlushInTime(Lane* lane);
  // Asks for the next bundle, if one is awaited and none is under way.
  void Receive(AskLane* lane);
  struct Receiving;
  void Postpone(AskLane* lane);
  static void ReceiveDone(void* context, const sealane_error* error, sealane_tensor* came);
  // `asked`: whether Sealane was asked.
  void BundleCame(AskLane* lane, absl::Status status, sealane_tensor* came, bool asked);
  // Whether an entry with this number is for the asking.
  static bool Takes(Asking* asking, uint8_t number);
  // Matches arrivals to the askings that wait for them, and parks the rest. False if that is too much.
  bool Match(AskLane* lane, const std::vector<Arrival>& arrivals, std::vector<std::pair<Asking*, Arrival>>* matched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Arrived(Asking* asking, const Arrival& arrival);
  // Asks for data into the given memory.
  void AskFor(AskLane* lane, const std::vector<sealane_wanted>& wanted);
  void AskForData(Asking* asking, size_t bytes);
  // There is no memory for it: it goes by gRPC.
  void NoRoom(Asking* asking, size_t bytes, const absl::Status& why);
  static void DataDone(void* context, const sealane_error* error, sealane_tensor* came);
  void DataCame(Asking* asking, const absl::Status& status, sealane_tensor* came);
  // Removes the first asking of a key; returns the next, if any, for the caller to start. `counts`: its producer has no more of it.
  Asking* TakeAway(Asking* asking, bool counts);
  // The ends, of which the first one counts. Each gives the asking's reference back. `blind`: a bundle may have an entry for it, and
  // AskLane::blind counts it.
  void EndByGrpc(Asking* asking, bool blind = false);
  void EndWith(Asking* asking, const absl::Status& status, const Incoming& incoming = {}, sealane_tensor* came = nullptr);
  // Collectives reuse their keys in a step that never ends, so a tensor taken by gRPC although Sealane has it would be taken for the next
  // one of its key: from the first such case on, the whole lane goes by gRPC.
  void Spoil(AskLane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it on another thread, if it has begun: with its cancellation status if cancelled, else by gRPC.
  void EndSoon(Asking* asking);

  const std::shared_ptr<Endpoint> endpoint_;
  const Of of_;
  const int64_t id_;
  tensorflow::thread::ThreadPool* const pool_;
  std::mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // Something was given up that Sealane may remember under the step's id.
  bool unclean_ ABSL_GUARDED_BY(mu_) = false;
  int sent_ ABSL_GUARDED_BY(mu_) = 0;  // Parts that Sealane has.
  absl::flat_hash_map<std::string, std::unique_ptr<SendLane>> send_lanes_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::unique_ptr<AskLane>> ask_lanes_ ABSL_GUARDED_BY(mu_);
  // The first of each key, which owns the key.
  absl::flat_hash_map<absl::string_view, std::pair<SendLane*, Sending*>> sendings_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<absl::string_view, Asking*> askings_ ABSL_GUARDED_BY(mu_);
  // By key: how often it was asked for by gRPC and not left there yet; if negative, left there and not asked for yet.
  absl::flat_hash_map<std::string, int> by_grpc_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<size_t, uint8_t> numbers_ ABSL_GUARDED_BY(mu_);  // By the key's hash, see NumberOf.
  // Producers where the step has failed.
  absl::flat_hash_map<std::string, absl::Status> aborted_by_ ABSL_GUARDED_BY(mu_);
};

// A recv of one tensor. Ref-counted: deleted after Received or AskByGrpc.
class Asking : public tensorflow::core::RefCounted {
 public:
  explicit Asking(absl::string_view key) : key(key) {}

  // The tensor has come, or the recv failed. Must free `came`.
  virtual void Received(const absl::Status& status, const Incoming& incoming, sealane_tensor* came) = 0;
  // Must ask by gRPC, and call `over`, unless null, when that has ended.
  virtual void AskByGrpc(std::function<void()> over) = 0;
  // Gives up: Received is called with this status on another thread, unless one of the ends came first.
  void Cancel(const absl::Status& status);

  const std::string key;

 protected:
  ~Asking() override { sealane_tensor_free(came); }

 private:
  friend class Step;
  void CancelCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  std::mutex mu;
  Step* step ABSL_GUARDED_BY(mu) = nullptr;  // Set when asked for, then constant; so is `lane`.
  Step::AskLane* lane = nullptr;
  bool begun ABSL_GUARDED_BY(mu) = false, ended ABSL_GUARDED_BY(mu) = false;
  absl::Status cancelled ABSL_GUARDED_BY(mu);
  bool unsent ABSL_GUARDED_BY(mu) = false;  // The producer leaves it for gRPC.
  // For its data: made at once if the size is known from an earlier step, else when a bundle gives it.
  Step::Call data ABSL_GUARDED_BY(mu);
  AloneWait wait ABSL_GUARDED_BY(mu);
  std::optional<Incoming> announced ABSL_GUARDED_BY(mu);  // What a bundle said of it, without its bytes.
  sealane_tensor* came ABSL_GUARDED_BY(mu) = nullptr;   // Its data, if it came before its announcement.
  // Guarded by the step's mutex.
  enum class Entry {
    kNone,     // Not asked for: it comes alone, or its turn has not come.
    kAwaited,  // Expected in the next bundles.
    kCame,
  };
  Entry entry = Entry::kNone;
  uint8_t number = 0;      // See Step::NumberOf; set when its turn comes, then constant.
  Asking* next = nullptr;  // The next under the same key.
};

template <typename Lane>
void Step::FlushInTime(Lane* lane) {
  // The first of a burst goes at once, for low latency.
  constexpr auto kBurst = std::chrono::microseconds(50);
  if (Clock::now() - lane->flushed > kBurst) return Flush(lane);
  Ref();
  endpoint_->Soon([this, lane] {
    Flush(lane);
    Unref();
  });
}

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_STEP_H_
