// Tensors that producers could not send, noted until they are asked for, then by gRPC.
#ifndef SEALANE_TENSORFLOW_UNSENT_H_
#define SEALANE_TENSORFLOW_UNSENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace sealane_tensorflow {

class Unsent {
 public:
  // Limit on the notes of one producer, in bytes. They follow the loss of a daemon or a link, after which most steps end soon.
  static constexpr size_t kProducerBytes = 1 << 20;
  // What a note takes besides its key.
  static constexpr size_t kNoteBytes = 128;

  // False if this producer says too much: all its notes are forgotten.
  bool Add(absl::string_view producer, int64_t step, absl::string_view key, uint8_t number);
  // Whether the producer has said so; true once.
  bool Take(absl::string_view producer, int64_t step, absl::string_view key, uint8_t number);
  // The step is over.
  void Forget(int64_t step);

 private:
  using Note = std::pair<std::string, uint8_t>;
  struct Producer {
    absl::flat_hash_map<int64_t, absl::flat_hash_set<Note>> steps;
    size_t bytes = 0;
  };
  static size_t BytesOf(const Note& note) { return kNoteBytes + note.first.size(); }

  std::atomic<bool> any_{false};
  std::mutex mu_;
  absl::flat_hash_map<std::string, Producer> producers_ ABSL_GUARDED_BY(mu_);  // Bounded by the endpoint map, which names them all.
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_UNSENT_H_
