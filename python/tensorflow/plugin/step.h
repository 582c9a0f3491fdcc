// What one step sends to other tasks and asks them for.
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

// A tensor on its way to another task.
class Sending {
 public:
  Sending(absl::string_view key, tensorflow::Tensor tensor, bool dead) : key(key), tensor(std::move(tensor)), dead(dead) {}
  virtual ~Sending() = default;

  // Puts the tensor into host memory, if it is not there, and calls `done`, then or later.
  virtual void Stage(std::function<void(const absl::Status&)> done) { done(absl::OkStatus()); }
  // Leaves the tensor where TensorFlow's gRPC services look for it; once at most, and not while it is being staged.
  virtual void LeaveForGrpc() = 0;
  // The consumer has it, or it was left for gRPC, or, with an error, the step has ended. Nothing but the destructor is called afterwards.
  virtual void Ended(const absl::Status& status) = 0;

  const std::string key;
  tensorflow::Tensor tensor;
  const bool dead;

 private:
  friend class Step;
  enum class State {
    kHeld,     // No consumer has said hello for it.
    kStaging,  // On its way to host memory.
    kReady,    // To be handed over.
    kSent,     // Sealane has it, or a part of it.
    kTaken,    // The consumer has it. Sealane may still have an entry of it.
    kLeft,     // Left for gRPC. Sealane may still have it as well.
  };
  SendRoute* route = nullptr;
  Outgoing outgoing;
  uint8_t number = 0;    // See Step::NumberOf.
  std::string data_key;  // Unless it is whole in a bundle.
  // Guarded by the step's mutex.
  State state = State::kHeld;
  bool leave = false;       // To be left for gRPC when it is staged.
  Form form = Form::kWhole;
  bool described = false;   // Its bytes go with its type and shape: they are all of it.
  bool failed = false;      // One of its parts did.
  Parts out = {};           // That the consumer does not have.
  int sweeps = 0;           // See Step::TellHeld.
  std::shared_ptr<void> agreement;  // See Step::Agree.
  int uses = 1;             // One each for its place among its step's, its staging, parts that are under way, and memory that is lent.
  Sending* next = nullptr;  // The next under the same key.
};

class Asking;

// Counted: calls under way keep it, and so does its owner, until End.
class Step : public tensorflow::core::RefCounted {
 public:
  enum class Of { kRendezvous, kCollective };
  // `pool`: where many tensors that came at once are handed out; null: on Sealane's thread.
  Step(std::shared_ptr<Endpoint> endpoint, Of of, int64_t id, tensorflow::thread::ThreadPool* pool);

  Of of() const { return of_; }
  int64_t id() const { return id_; }
  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

  // The key under which the bundles of a pair travel, those of each kind of step apart.
  static std::string BundlesKey(absl::string_view pair, Of of);

  // Whether Sealane takes a key of this length; longer ones, which both sides see, go by gRPC.
  static bool Fits(absl::string_view key);

  using PeerOf = std::function<Peer*()>;

  // Sends under the key of `sending`, once what was sent under the same key before has ended. Never waits. `peer`: the consumer.
  void Send(absl::string_view pair, const PeerOf& peer, std::unique_ptr<Sending> sending);
  // The consumer asks for a key by gRPC: what was sent under it, or will be next, is left there.
  void AskedByGrpc(absl::string_view key);
  // Something was left there without Send.
  void LeftForGrpc(absl::string_view key);
  // Asks for the key of `asking`, once what was asked for under the same key before has come. `peer`: the producer. Takes over a reference.
  void Ask(absl::string_view pair, const PeerOf& peer, Asking* asking);

  // Its owner has failed or is gone: ends what is being sent. Asking is for the owner to cancel, before.
  void End();
  bool ended();

  // A consumer has said hello.
  void Settled(absl::string_view pair);
  // This task says hello: bundles may have entries for what is waited for alone.
  void AwaitAll(absl::string_view pair);
  // A producer has left a key for gRPC. False if it is still to be asked for.
  bool Unsent(absl::string_view producer, absl::string_view key, uint8_t number);
  // A consumer is to be told that it need not wait for bundles with a key, once those are gone that are out: they keep `agreement`.
  void Agree(absl::string_view pair, absl::string_view key, const std::shared_ptr<void>& agreement);
  // The producer of a key is about to hear that it may send it alone: what waits for it in bundles asks for it under DataKey as well.
  void AskAlone(absl::string_view pair, absl::string_view key);
  // Tells consumers what has been out for a while: called every Endpoint::kSweepMs.
  void TellHeld();
  // A producer has had this out for a while. What this side waits for in another way than it is sent ends by gRPC, lest it wait for ever.
  void Held(absl::string_view pair, absl::string_view from, const HeldTensors& held);
  // A producer sends no more of a pair by Sealane.
  void Refused(absl::string_view pair);
  // The step has failed at a producer, for good.
  void AbortedBy(absl::string_view producer, const absl::Status& status);

 private:
  friend class Asking;
  using Clock = std::chrono::steady_clock;
  // What goes to one device, gathered while what came before is handed over.
  struct SendLane {
    SendRoute* route;
    std::string bundles;                           // The key of its bundles.
    std::vector<Sending*> held, ready, unbundled;  // `unbundled`: waiting for the bundle that is under way, which is one at most.
    bool bundling = false;
    bool flushing = false;
    Clock::time_point flushed;
    std::string told;  // The last line of TellHeld, which alone uses this.
  };
  // What is asked of one device.
  struct AskLane {
    AskRoute* route;
    std::string bundles;
    int asked = 0;                // Of its askings, those that have not ended.
    int awaited = 0;              // Of those, the ones that an entry of a bundle is awaited for.
    bool by_sealane = false;      // Until none of them is left.
    // Askings that went by gRPC although a bundle may have an entry for them. As long as there are any, no bundle is asked for, which would
    // take that entry away from where gRPC looks for it.
    int blind = 0;
    bool refused = false;         // The producer has taken its welcome back, and a bundle is under way.
    bool spoiled = false;         // See Spoil.
    std::string from;             // The task that is asked so.
    bool settling = false;
    std::vector<Asking*> unsettled;
    std::vector<Asking*> sized;   // To have their data asked for before it is announced. Counted.
    bool flushing = false;
    Clock::time_point flushed;
    bool receiving = false;       // A bundle.
    sealane_call* bundle = nullptr;
    uint64_t received = 0;
    int postponed = 0;            // How often in a row it was asked for in vain.
    // By key: what came before it was asked for.
    absl::flat_hash_map<std::string, std::vector<Parked>> parked;
    size_t parked_bytes = 0;
  };
  // A call for an asking, and what is known of it.
  struct Call {
    bool ended = false;
    int attempt = 0;
    sealane_call* handle = nullptr;
  };

  ~Step() override = default;

  // How many tensors of a key this step had before, either way, modulo 256. Both sides count alike, so that a call or a message about one
  // of them is never taken for the next under the same key.
  uint8_t NumberOf(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountOne(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountLeft(absl::string_view key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SendLane* LaneOfSend(absl::string_view pair, const PeerOf& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  AskLane* LaneOfAsk(absl::string_view pair, const PeerOf& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Takes the first of a key away, which is then for the caller to end. `next`, if any, is for the caller to start.
  SendLane* TakeAway(Sending* sending, Sending** next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Start(SendLane* lane, Sending* sending);
  void Staged(SendLane* lane, Sending* sending, absl::Status status);
  Form FormOf(SendLane* lane, const Sending& sending);
  // Puts its bytes where they are sent from in this form.
  absl::Status Prepare(Sending* sending, Form form);
  void Flush(SendLane* lane);
  struct Bundle;
  absl::Status HandOver(const BundleWriter& writer, const std::string& to, Bundle* bundle);
  // Sends what was announced.
  void SendData(const std::string& to, const std::vector<Sending*>& ready);
  // Sends the next bundle, if none is under way.
  void SendBundle(SendLane* lane, const std::string& to);
  // The consumer has a part of it, or never will.
  void PartEnded(Sending* sending, bool Parts::*part, const absl::Status& status);
  void Fail(Sending* sending, const absl::Status& status);
  // Takes it out of what its lane gathers.
  static void Forget(SendLane* lane, Sending* sending);
  // Has Sealane forget the step.
  void CleanUp();
  // The same, of what was handed over while the step ended: its clean-up may have come before.
  void CleanUpIfEnded();
  // Ends what was taken away.
  void Leave(SendLane* lane, Sending* sending, Sending* next);
  void Unuse(Sending* sending);
  struct Part;
  static void PartDone(void* context, const sealane_error* error);
  static void PartReleased(void* context);
  static void BundleDone(void* context, const sealane_error* error);

  // Its turn has come. `way`: as was settled just now.
  void Start(AskLane* lane, Asking* asking, Way way = Way::kUnsettled);
  void Settle(AskLane* lane);
  void StartUnsettled(AskLane* lane, Way way);
  // What waits in a spoiled lane looks again.
  void StartUnsettledIfSpoiled(AskLane* lane);
  // A bundle may have an entry for it, or has one already.
  void Await(AskLane* lane, Asking* asking);
  void AwaitAll(AskLane* lane);
  std::optional<Parked> TakeParked(AskLane* lane, const Asking& asking) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks for its data, of which the size is known from an earlier step.
  void AskAlone(AskLane* lane, Asking* asking);
  // Asks for the data of those of which the size is known.
  void Flush(AskLane* lane);
  // The same, soon if it was done just now.
  template <typename Lane>
  void FlushInTime(Lane* lane);
  // Asks for the next bundle, if one is awaited and none is under way.
  void Receive(AskLane* lane);
  struct Receiving;
  void Postpone(AskLane* lane);
  static void ReceiveDone(void* context, const sealane_error* error, sealane_tensor* came);
  // `asked`: Sealane was.
  void BundleCame(AskLane* lane, absl::Status status, sealane_tensor* came, bool asked);
  // Whether an entry of that number is the asking's.
  static bool Takes(Asking* asking, uint8_t number);
  // Finds who is waiting for what came; parks what nobody waits for. False if that is too much.
  bool Match(AskLane* lane, const std::vector<Arrival>& arrivals, std::vector<std::pair<Asking*, Arrival>>* matched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Arrived(Asking* asking, const Arrival& arrival);
  // Asks for data into the memory that goes with it.
  void AskFor(AskLane* lane, const std::vector<sealane_wanted>& wanted);
  void AskForData(Asking* asking, size_t bytes);
  // There is no memory for it, and why: it ends by gRPC.
  void NoRoom(Asking* asking, size_t bytes, const absl::Status& why);
  static void DataDone(void* context, const sealane_error* error, sealane_tensor* came);
  void DataCame(Asking* asking, const absl::Status& status, sealane_tensor* came);
  // Takes the first of a key away; the next, if any, is for the caller to start. `counts`: its producer has no more of it.
  Asking* TakeAway(Asking* asking, bool counts);
  // The ends, of which the first one counts. Each gives the asking's reference back. `blind`: a bundle may have an entry for it,
  // and its lane has counted it so.
  void EndByGrpc(Asking* asking, bool blind = false);
  void EndWith(Asking* asking, const absl::Status& status, const Incoming& incoming = {}, sealane_tensor* came = nullptr);
  // Collectives use their keys again in a step that never ends, so what gRPC took although Sealane has it would be taken for what comes
  // next under its key: from the first one on, all of such a lane goes by gRPC.
  void Spoil(AskLane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it, if it has begun, with what it was cancelled with, or else by gRPC; on another thread.
  void EndSoon(Asking* asking);

  const std::shared_ptr<Endpoint> endpoint_;
  const Of of_;
  const int64_t id_;
  tensorflow::thread::ThreadPool* const pool_;
  std::mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  // Something was given up that Sealane may remember by the step's number.
  bool unclean_ ABSL_GUARDED_BY(mu_) = false;
  int sent_ ABSL_GUARDED_BY(mu_) = 0;  // Parts that Sealane has.
  absl::flat_hash_map<std::string, std::unique_ptr<SendLane>> send_lanes_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::unique_ptr<AskLane>> ask_lanes_ ABSL_GUARDED_BY(mu_);
  // The first of each key, whose key it is by.
  absl::flat_hash_map<absl::string_view, std::pair<SendLane*, Sending*>> sendings_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<absl::string_view, Asking*> askings_ ABSL_GUARDED_BY(mu_);
  // By key, how often it was asked for by gRPC and not left there yet; below zero, how often it was left there and not asked for yet.
  absl::flat_hash_map<std::string, int> by_grpc_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<size_t, uint8_t> numbers_ ABSL_GUARDED_BY(mu_);  // By the key's hash, see NumberOf.
  // Producers at which it has failed.
  absl::flat_hash_map<std::string, absl::Status> aborted_by_ ABSL_GUARDED_BY(mu_);
};

// A tensor that is asked for. Counted: deleted after one of its two ends.
class Asking : public tensorflow::core::RefCounted {
 public:
  explicit Asking(absl::string_view key) : key(key) {}

  // The tensor has come, or the asking failed. `came` is to be freed.
  virtual void Received(const absl::Status& status, const Incoming& incoming, sealane_tensor* came) = 0;
  // It is to be asked for by gRPC. `over` is to be called, if it is not null, when that has ended.
  virtual void AskByGrpc(std::function<void()> over) = 0;
  // Gives up: Received comes with this status, on another thread, unless one of the ends was before.
  void Cancel(const absl::Status& status);

  const std::string key;

 protected:
  ~Asking() override { sealane_tensor_free(came); }

 private:
  friend class Step;
  void CancelCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  std::mutex mu;
  Step* step ABSL_GUARDED_BY(mu) = nullptr;  // Once it is asked for, and then for good; so is `lane`.
  Step::AskLane* lane = nullptr;
  bool begun ABSL_GUARDED_BY(mu) = false, ended ABSL_GUARDED_BY(mu) = false;
  absl::Status cancelled ABSL_GUARDED_BY(mu);
  bool unsent ABSL_GUARDED_BY(mu) = false;  // The producer leaves it for gRPC.
  // For its data: made at once where the size is known from an earlier step, else when a bundle says it.
  Step::Call data ABSL_GUARDED_BY(mu);
  AloneWait wait ABSL_GUARDED_BY(mu);
  std::optional<Incoming> announced ABSL_GUARDED_BY(mu);  // What a bundle has said of it, without its bytes.
  sealane_tensor* came ABSL_GUARDED_BY(mu) = nullptr;   // Its data, before the bundle that announces it.
  // Guarded by the step's mutex.
  enum class Entry {
    kNone,     // None is asked for: it comes alone, or its turn has not come.
    kAwaited,  // In the next bundles.
    kCame,
  };
  Entry entry = Entry::kNone;
  uint8_t number = 0;      // See Step::NumberOf; when its turn has come, and then for good.
  Asking* next = nullptr;  // The next under the same key.
};

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

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_STEP_H_
