// Which tensors of a pair of devices go alone: not within a bundle, and not announced in one. The consumer, which was announced a tensor
// of the same key twice, tells the producer its key and for how many bytes it makes room from now on; what fits into that, be it small or
// dead, then goes under DataKey, where the consumer waits for it, and no bundle is needed. Only what came so tells the consumer that the
// producer has heard. With a hello the producer forgets what it was told, and the consumer doubts it: until a tensor of the key comes alone
// again, it is waited for both ways.
#ifndef SEALANE_TENSORFLOW_ALONE_H_
#define SEALANE_TENSORFLOW_ALONE_H_

#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace sealane_tensorflow {

// Keys of a pair that go alone at most, and what a consumer can have its producer keep of them, in bytes.
constexpr size_t kAloneKeys = 1 << 14;
constexpr size_t kAloneBytes = 4 << 20;

// The producer's side.
class AloneSends {
 public:
  // Whether a tensor of so many bytes goes alone.
  bool Has(absl::string_view key, size_t bytes);
  void Add(absl::string_view key, size_t bytes);
  void Clear();

 private:
  std::mutex mu_;
  std::atomic<bool> any_{false};
  absl::flat_hash_map<std::string, size_t> rooms_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // Of its keys.
};

// The consumer's side.
class AloneAsks {
 public:
  struct Known {
    size_t room = 0;      // To be made when the tensor is asked for; 0: its size is not known.
    bool agreed = false;  // It comes alone if it fits, and is announced if not.
    bool told = false;    // The producer was, as far as is known.
  };
  Known Of(absl::string_view key);
  // An announced tensor came. Gives the room that the producer is to be told of, or 0.
  size_t Announced(absl::string_view key, size_t bytes);
  void CameAlone(absl::string_view key);
  // The producer was not reached.
  void NotTold(absl::string_view key);
  // A hello is said.
  void Doubt();

 private:
  std::mutex mu_;
  std::atomic<bool> any_{false};
  absl::flat_hash_map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);
  // Hashes of keys that were announced once. Most keys of eager jobs never come again.
  absl::flat_hash_set<size_t> once_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ALONE_H_
