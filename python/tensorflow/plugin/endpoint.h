// A server as a task of the host's Sealane daemon.
#ifndef SEALANE_TENSORFLOW_ENDPOINT_H_
#define SEALANE_TENSORFLOW_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>
#include <mutex>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "address_book.h"
#include "burst.h"
#include "handouts.h"
#include "memory.h"
#include "routes.h"
#include "sealane.h"
#include "unsent.h"
#include "tensorflow/core/lib/core/refcount.h"

namespace sealane_tensorflow {

class Step;

// Attaches, if need be when the daemon comes later; sends and answers hellos; knows the running steps.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  // `name`: the server's ("/job:ps/replica:0/task:0"). `address`: its address in the cluster definition, which is its task in the endpoint
  // map. `is_mine`: whether an incarnation is that of one of the server's devices.
  static std::shared_ptr<Endpoint> Make(std::string name, std::string address, std::function<bool(uint64_t)> is_mine);
  ~Endpoint();

  // Tries to attach. On failure, logs it and keeps trying; until the daemon is there, all goes by gRPC.
  void Attach();

  // The server ends: hellos are no longer welcomed. Detaches with the last of its steps.
  void Close();

  // Null until attached, then the same until the end.
  sealane_task* task() const { return task_.load(std::memory_order_acquire); }

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  ArenaAllocator* arena() const { return arena_; }
  AddressBook& book() { return book_; }
  Routes& routes() { return routes_; }

  // Running steps, so that hellos and failures find them.
  void Enter(Step* step);
  // `unclean`: Sealane may remember something under the step's id. True if the caller must clean that up, as no other step of this id is
  // running.
  bool Leave(Step* step, bool unclean);

  // The running steps of an id.
  std::vector<tensorflow::core::RefCountPtr<Step>> Steps(int64_t id);

  // Count a tensor that went or came by gRPC, here and in the daemon's figures.
  void SentByGrpc(Peer* peer, size_t bytes);
  void ReceivedByGrpc(Peer* peer, size_t bytes);

  // An announced tensor came: tells the producer if it may send the key's next one alone.
  void CameAnnounced(AskRoute* route, const std::string& key, size_t bytes);

  // Calls `what` soon on the endpoint's own thread, together with what is added meanwhile. It must not block.
  void Soon(std::function<void()> what) { soon_.Do(std::move(what)); }

  Handouts& handouts() { return handouts_; }

  // How often consumers are told what they have not taken, see Step::TellHeld. Each tensor is first reported after one to two of these, so
  // that a wait in vain ends within a second.
  static constexpr int64_t kSweepMs = 300;
  // Tells a consumer what it has not taken of a step; `lines`: see HeldLine. Returns how many were told: the rest is too much at once.
  size_t TellHeld(const std::string& to, const Step& step, const std::string& pair, const std::vector<std::string>& lines);

  // Tells a consumer to ask by gRPC for a tensor that could not be sent, repeatedly, until it has heard or the step is over.
  void TellUnsent(const std::string& to, int64_t step, uint8_t number, const std::string& key);
  // Whether a producer has said so of a tensor about to be asked for; true once.
  bool TakeUnsent(const std::string& producer, int64_t step, const std::string& key, uint8_t number) {
    return unsent_.Take(producer, step, key, number);
  }
  // Tells all consumers that a step has failed here.
  void TellAborted(const Step& step, const absl::Status& status);

  // {"task": ..., "steps": ..., "pairs": [...]}: the number of running steps, and the traffic by transport.
  std::string Report() const;

 private:
  Endpoint(std::string name, std::string address, std::function<bool(uint64_t)> is_mine);

  void Listen();
  void Accept(const std::shared_ptr<sealane_acceptor>& queue);
  static void Accepted(void* context, const sealane_error* error, sealane_tensor* const* tensors, size_t count);
  void TryAgain(int64_t milliseconds, std::function<void(Endpoint*)> what);
  void NoteElsewhere(const Peer& peer, int32_t direction, size_t bytes);
  std::vector<tensorflow::core::RefCountPtr<Step>> AllSteps();

  void SayHello(AskRoute* route);
  // Requests a tensor that a producer never sends, so that this task is notified when Sealane loses the producer between two steps.
  void Watch(const std::string& producer);
  static void Watched(void* context, const sealane_error* error, sealane_tensor* came);
  void WatchEnded(const std::string& producer, const absl::Status& status);
  // Pushes a message into the queue of another task's server. `failed` is called, on another thread, if it is not taken in time.
  void Push(const std::string& to, std::string message, std::function<void(const absl::Status&)> failed);
  // The same, up to `tries` times until it is taken, while `still` holds.
  void PushAgain(const std::string& to, const std::string& message, int tries, std::function<bool(Endpoint*)> still);
  void Heard(absl::string_view from, absl::string_view message);
  bool IsMine(uint64_t incarnation);
  void HeardAlone(absl::string_view from, absl::string_view pair, absl::string_view rest);
  void HeardUnsent(absl::string_view from, int64_t id, absl::string_view rest);
  void HeardHeld(absl::string_view from, int64_t id, absl::string_view rest);
  // Calls Step::TellHeld of all steps every kSweepMs.
  void Sweep();
  void HeardHello(absl::string_view from, absl::string_view pair, absl::string_view number);

  const std::string name_, address_;
  mutable std::mutex mu_;
  std::function<bool(uint64_t)> is_mine_ ABSL_GUARDED_BY(mu_);
  std::string unattached_ ABSL_GUARDED_BY(mu_) = "this task is not attached to a Sealane daemon";
  std::atomic<sealane_task*> task_{nullptr};
  ArenaAllocator* const arena_ = new ArenaAllocator;  // Never deleted, see ArenaAllocator.
  AddressBook book_;
  Routes routes_;

  struct UnderWay {
    absl::flat_hash_set<Step*> steps;
    bool unclean = false;
  };
  absl::flat_hash_map<int64_t, UnderWay> steps_ ABSL_GUARDED_BY(mu_);
  // Who has said hello, and how often. Bounded by the endpoint map, which names them all.
  absl::flat_hash_map<std::string, int> consumers_ ABSL_GUARDED_BY(mu_);
  // Producers that are watched. Bounded by the endpoint map.
  absl::flat_hash_set<std::string> watched_ ABSL_GUARDED_BY(mu_);
  Unsent unsent_;

  Burst soon_;
  Handouts handouts_;
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ENDPOINT_H_
