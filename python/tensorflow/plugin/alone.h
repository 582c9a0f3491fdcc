// Which tensors of a pair of devices go alone: not within a bundle, and not announced in one. What both ends know of it, as state machines
// without I/O: tests/alone_model.cc tries every order in which they may hear of each other.
//
//     consumer, announced a key twice     Announced     "alone1": its hello, the key, and for how many bytes it makes room from now on
//     producer, if that hello is the last Add           from now on each tensor of the key has its bytes under DataKey, see FormOf
//     producer, with the last tensor of   (~Agreement)  "agreed1": the hello and the key
//     the key gone that it sent whole
//     consumer, if that hello is the last Agreed        asks for the key under DataKey alone, and for no bundle
//
// Until "agreed1", the consumer waits for a tensor both ways, as some may be whole within a bundle; after it none is, until the consumer
// says another hello (Doubt, Clear). A tensor that does not fit, or of which Sealane has no type, is announced all the same: the consumer
// sees by what comes under DataKey that a bundle has the rest (AloneWait).
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

// Keys of a pair that go alone at most, and what a consumer can have its producer keep of them, in bytes.
constexpr size_t kAloneKeys = 1 << 14;
constexpr size_t kAloneBytes = 4 << 20;

// A tensor of so many bytes is announced, and received in the consumer's own arena, without a further copy. The daemon's room for what comes
// unasked (daemon.area_bytes) is small, and what finds it full is lost.
constexpr size_t kAnnouncedBytes = 4096;

// How a tensor goes.
enum class Form {
  kWhole,      // Within a bundle.
  kAnnounced,  // A bundle says what it is, and its bytes come under DataKey.
  kAlone,      // Under DataKey, with its type and shape.
};

// The producer's side.
class AloneSends {
 public:
  // `plain`: Sealane knows the type.
  Form FormOf(absl::string_view key, bool plain, size_t bytes) const;
  // The consumer makes room for so many bytes of a key. True if it is to be told "agreed1", once no tensor of the key is out whole.
  bool Add(absl::string_view key, size_t bytes);
  // A consumer has said hello.
  void Clear();

 private:
  absl::flat_hash_map<std::string, size_t> rooms_;
  size_t bytes_ = 0;  // Of its keys.
};

// The consumer's side.
class AloneAsks {
 public:
  struct Known {
    size_t room = 0;      // To be made when the tensor is asked for; 0: its size is not known.
    bool agreed = false;  // No bundle has it whole.
    bool told = false;    // The producer was, as far as is known.
  };
  Known Of(absl::string_view key) const;
  // The last hello.
  uint64_t hello() const { return hello_; }
  // An announced tensor came. Gives the room that the producer is to be told of, or 0.
  size_t Announced(absl::string_view key, size_t bytes);
  // The producer has agreed, as to this hello.
  void Agreed(absl::string_view key, uint64_t hello);
  // The producer was not reached.
  void NotTold(absl::string_view key);
  // A hello is said.
  void Doubt(uint64_t hello);

 private:
  uint64_t hello_ = 0;
  absl::flat_hash_map<std::string, Known> known_;
  // Hashes of keys that were announced once. Most keys of eager jobs never come again.
  absl::flat_hash_set<size_t> once_;
};

// The consumer's side of one tensor: what it does about the bytes under DataKey.
class AloneWait {
 public:
  enum class Do {
    kNothing,
    kAsk,     // For its bytes, into memory of `asked`.
    kAwait,   // An entry of a bundle.
    kFinish,  // All of it is here.
    kGrpc,    // Its producer contradicts itself.
  };
  // Its bytes are to be asked for before a bundle says how many there are. False if they were asked for.
  bool Begin(size_t room);
  // A bundle has announced it.
  Do Announced(size_t bytes);
  // Its bytes came without type and shape.
  Do CameBare();
  // There are more bytes than were asked for. `room`: of the key, as known today: another step may have told the producer of it.
  Do TooShort(size_t room);

  bool started() const { return started_; }
  size_t asked() const { return asked_; }

 private:
  bool started_ = false, came_ = false;
  size_t asked_ = 0;
  std::optional<size_t> announced_;
};

// What a producer has out of a tensor, and what its consumer waits for. Where the two do not meet, the consumer asks by gRPC.
struct Parts {
  bool entry;  // Of a bundle.
  bool data;   // Under DataKey.
};
constexpr bool Meet(Parts out, Parts awaited) { return (out.entry && awaited.entry) || (out.data && awaited.data); }

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ALONE_H_
