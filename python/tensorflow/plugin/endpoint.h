// A server's task at the host's Sealane daemon.
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

// Attaches, and attaches again where the daemon comes later; says hello and answers hellos; knows the steps that are under way.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  // `name` is the server's ("/job:ps/replica:0/task:0"), `address` what the cluster's definition has for it: the task of the endpoint map.
  // `is_mine` says whether an incarnation is that of one of the server's devices.
  static std::shared_ptr<Endpoint> Make(std::string name, std::string address, std::function<bool(uint64_t)> is_mine);
  ~Endpoint();

  // Tries to attach. Where that fails, says so in the log: all goes by gRPC until the daemon is there, which is tried again and again.
  void Attach();

  // The server ends: nobody is welcomed any more. It detaches with the last of its steps.
  void Close();

  // Null until attached, and then the same until the end.
  sealane_task* task() const { return task_.load(std::memory_order_acquire); }

  const std::string& name() const { return name_; }
  const std::string& address() const { return address_; }
  ArenaAllocator* arena() const { return arena_; }
  AddressBook& book() { return book_; }
  Routes& routes() { return routes_; }

  // Steps under way, so that hellos and failures find what is theirs.
  void Enter(Step* step);
  // `unclean`: Sealane may remember something by the step's number. True if it is for the caller to clean that up, as no other step of the
  // same number is under way.
  bool Leave(Step* step, bool unclean);

  // Those of a number.
  std::vector<tensorflow::core::RefCountPtr<Step>> Steps(int64_t id);

  // A tensor went by gRPC: counted here, and for the daemon's figures.
  void SentByGrpc(Peer* peer, size_t bytes);
  void ReceivedByGrpc(Peer* peer, size_t bytes);

  // An announced tensor came: tells the producer if it may send the key's next alone.
  void CameAnnounced(AskRoute* route, const std::string& key, size_t bytes);

  // Has `what` called soon, on a thread of the endpoint's own: what is given to it meanwhile is done together. It may not wait.
  void Soon(std::function<void()> what) { soon_.Do(std::move(what)); }

  Handouts& handouts() { return handouts_; }

  // How often consumers are told of what they have not taken, see Step::TellHeld: of each tensor for the first time after one to two of these,
  // so that what is waited for in vain ends within a second.
  static constexpr int64_t kSweepMs = 300;
  // Tells a consumer what of a step it has not taken; `lines`: see HeldLine. Gives how many of them it told: the rest is too much at once.
  size_t TellHeld(const std::string& to, const Step& step, const std::string& pair, const std::vector<std::string>& lines);

  // Tells a consumer to ask by gRPC for a tensor that could not be sent to it; again and again, until it has heard or the step is over.
  void TellUnsent(const std::string& to, int64_t step, uint8_t number, const std::string& key);
  // Whether a producer has said so of what is about to be asked for; once.
  bool TakeUnsent(const std::string& producer, int64_t step, const std::string& key, uint8_t number) {
    return unsent_.Take(producer, step, key, number);
  }
  // Tells all consumers that a step has failed here.
  void TellAborted(const Step& step, const absl::Status& status);

  // {"task": ..., "steps": ..., "pairs": [...]}: how many steps are under way, and what went which way.
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
  // Pushes a message into the queue of another task's server. `failed` is called, on another thread, if it does not take it in time.
  void Push(const std::string& to, std::string message, std::function<void(const absl::Status&)> failed);
  // The same, so many times until it is taken, as long as `still` holds.
  void PushAgain(const std::string& to, const std::string& message, int tries, std::function<bool(Endpoint*)> still);
  void Heard(absl::string_view from, absl::string_view message);
  bool IsMine(uint64_t incarnation);
  void HeardAlone(absl::string_view from, absl::string_view pair, absl::string_view rest);
  void HeardUnsent(absl::string_view from, int64_t id, absl::string_view rest);
  void HeardHeld(absl::string_view from, int64_t id, absl::string_view rest);
  // Looks after what is out, again and again.
  void Sweep();
  void HeardHello(absl::string_view from, absl::string_view pair, absl::string_view number);

  const std::string name_, address_;
  mutable std::mutex mu_;
  std::function<bool(uint64_t)> is_mine_ ABSL_GUARDED_BY(mu_);
  std::string unattached_ ABSL_GUARDED_BY(mu_) = "this task is not attached to a Sealane daemon";
  std::atomic<sealane_task*> task_{nullptr};
  ArenaAllocator* const arena_ = new ArenaAllocator;  // Never deleted, see there.
  AddressBook book_;
  Routes routes_;

  struct UnderWay {
    absl::flat_hash_set<Step*> steps;
    bool unclean = false;
  };
  absl::flat_hash_map<int64_t, UnderWay> steps_ ABSL_GUARDED_BY(mu_);
  // Who has said hello, and how often. The endpoint map, which names them all, bounds it.
  absl::flat_hash_map<std::string, int> consumers_ ABSL_GUARDED_BY(mu_);
  Unsent unsent_;

  Burst soon_;
  Handouts handouts_;
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ENDPOINT_H_
