// Which tensors of a pair of devices go alone: neither in a bundle nor announced in one. What each side knows of it is kept in state
// machines without I/O; tests/alone_model.cc tries every order in which the sides may hear of each other.
//
//     consumer, key announced twice        Announced    sends "alone1": its hello, the key, the bytes it makes room for from now on
//     producer, if that hello is the last  Add          sends the bytes of the key under DataKey from now on, see FormOf
//     producer, once the last tensor of    Step::Agree  sends "agreed1": the hello and the key
//     the key that it sent whole is gone
//     consumer, if that hello is the last  Agreed       asks for the key under DataKey only, and for no bundle
//
// Until "agreed1" the consumer waits for a tensor both ways, as it may still come whole in a bundle; afterwards none does, until the
// consumer says another hello (Doubt, Clear). A tensor that does not fit, or whose type Sealane does not know, is announced all the same:
// from what comes under DataKey the consumer sees that a bundle has the rest (AloneWait).
#ifndef SEALANE_TENSORFLOW_ALONE_H_
#define SEALANE_TENSORFLOW_ALONE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace sealane_tensorflow {

// Limits of a pair: keys that go alone, and bytes of keys that a consumer can make its producer store.
constexpr size_t kAloneKeys = 1 << 14;
constexpr size_t kAloneBytes = 4 << 20;

// Tensors from this size on are announced, and received in the consumer's own arena without another copy. The daemon's room for unasked
// tensors (daemon.area_bytes) is small; what finds it full is lost.
constexpr size_t kAnnouncedBytes = 4096;

// How a tensor travels.
enum class Form {
  kWhole,      // Within a bundle.
  kAnnounced,  // A bundle describes it; its bytes come under DataKey.
  kAlone,      // Under DataKey, with its type and shape.
};

// The producer's side.
class AloneSends {
 public:
  // `plain`: Sealane knows the type.
  Form FormOf(absl::string_view key, bool plain, size_t bytes) const;
  // The consumer makes room for this many bytes of a key. True if it is due an "agreed1" once no tensor of the key is out whole.
  bool Add(absl::string_view key, size_t bytes);
  // A consumer has said hello.
  void Clear();

 private:
  absl::flat_hash_map<std::string, size_t> rooms_;
  size_t bytes_ = 0;  // Total length of the keys.
};

// The consumer's side.
class AloneAsks {
 public:
  struct Known {
    size_t room = 0;      // Bytes to allocate when asking; 0: size unknown.
    bool agreed = false;  // No bundle has it whole.
    bool told = false;    // The producer was told, as far as is known.
  };
  Known Of(absl::string_view key) const;
  // Number of the last hello.
  uint64_t hello() const { return hello_; }
  // An announced tensor came. Returns the room to tell the producer of, or 0.
  size_t Announced(absl::string_view key, size_t bytes);
  // The producer has agreed, in answer to this hello.
  void Agreed(absl::string_view key, uint64_t hello);
  // The producer was not reached.
  void NotTold(absl::string_view key);
  // A new hello is sent: nothing is agreed or told any more.
  void Doubt(uint64_t hello);

 private:
  uint64_t hello_ = 0;
  absl::flat_hash_map<std::string, Known> known_;
  // Hashes of keys announced once. Most keys of eager jobs never come again.
  absl::flat_hash_set<size_t> once_;
};

// The consumer's side of one tensor: what to do about its bytes under DataKey.
class AloneWait {
 public:
  enum class Do {
    kNothing,
    kAsk,     // Ask for its bytes, with room for asked().
    kAwait,   // Wait for its bundle entry.
    kFinish,  // All of it has come.
    kGrpc,    // The producer contradicts itself.
  };
  // Its bytes are asked for before a bundle gives their number. False if they were asked for already.
  bool Begin(size_t room);
  // A bundle has announced it.
  Do Announced(size_t bytes);
  // Its bytes came without type and shape.
  Do CameBare();
  // There are more bytes than were asked for. `room`: the key's as known now; another step may have told the producer of it.
  Do TooShort(size_t room);

  bool started() const { return started_; }
  size_t asked() const { return asked_; }

 private:
  bool started_ = false, came_ = false;
  size_t asked_ = 0;
  std::optional<size_t> announced_;
};

// What a producer has out of a tensor, or what its consumer awaits. If the two do not meet, the consumer asks by gRPC.
struct Parts {
  bool entry;  // A bundle entry.
  bool data;   // Bytes under DataKey.
};
constexpr bool Meet(Parts out, Parts awaited) { return (out.entry && awaited.entry) || (out.data && awaited.data); }

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ALONE_H_
