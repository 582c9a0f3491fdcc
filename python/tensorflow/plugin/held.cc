#include "held.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tensorflow/core/platform/hash.h"

namespace sealane_tensorflow {
namespace {

constexpr uint32_t kEntry = 1, kData = 2;

}  // namespace

uint64_t HeldHashOf(absl::string_view key) { return tensorflow::Hash64(key.data(), key.size()); }

std::string HeldLine(absl::string_view key, const HeldTensor& tensor) {
  const uint32_t parts = (tensor.out.entry ? kEntry : 0) | (tensor.out.data ? kData : 0);
  return absl::StrCat(absl::Hex(HeldHashOf(key)), " ", absl::Hex(tensor.number), " ", parts);
}

HeldTensors ReadHeld(absl::string_view lines) {
  HeldTensors held;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    uint64_t hash;
    uint32_t number, parts;
    if (words.size() != 3 || !absl::SimpleHexAtoi(words[0], &hash) || !absl::SimpleHexAtoi(words[1], &number) || number > UINT8_MAX ||
        !absl::SimpleAtoi(words[2], &parts) || parts > (kEntry | kData)) {
      continue;
    }
    held[hash] = {static_cast<uint8_t>(number), {(parts & kEntry) != 0, (parts & kData) != 0}};
  }
  return held;
}

}  // namespace sealane_tensorflow
