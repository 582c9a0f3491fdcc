// What a producer reports of tensors that its consumer has not taken for a while, see Step::Held.
#ifndef SEALANE_TENSORFLOW_HELD_H_
#define SEALANE_TENSORFLOW_HELD_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "alone.h"

namespace sealane_tensorflow {

struct HeldTensor {
  uint8_t number = 0;  // See Step::NumberOf.
  Parts out = {};
};
// By HeldHashOf the key, which is the same in all processes.
using HeldTensors = absl::flat_hash_map<uint64_t, HeldTensor>;
uint64_t HeldHashOf(absl::string_view key);

// The line "HASH NUMBER PARTS", in hexadecimal.
std::string HeldLine(absl::string_view key, const HeldTensor& tensor);
// Reads such lines; skips malformed ones.
HeldTensors ReadHeld(absl::string_view lines);

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_HELD_H_
