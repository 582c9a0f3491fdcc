// Tensors that leave for one device at the same time travel as one Sealane tensor, a bundle. A step sends its bundles for a device under
// one key, one at a time: tensors sent while one is on its way go with the next, so bundles grow with the load and a single tensor waits
// for nothing. Modelled on DeepRec's tensor_fuse, which rewrites the graph.
//
// A bundle is a magic number of 8 bytes and entries, each at a multiple of 8 bytes:
//
//     u8 kind, u8 flags, u8 code, u8 bits, u8 rank, u8 number, u16 key bytes
//     u64 tensor bytes, u64 dimensions[rank], the key, the tensor if whole
//
// in host byte order, which the magic number shows. The number: see Step::NumberOf.
#ifndef SEALANE_TENSORFLOW_BUNDLE_H_
#define SEALANE_TENSORFLOW_BUNDLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "sealane.h"
#include "tensors.h"

namespace sealane_tensorflow {

// The longest bundle. The consumer reserves this much of its arena while it waits for one.
constexpr size_t kBundleBytes = 128 << 10;

class BundleWriter {
 public:
  // Adds a tensor, or its announcement. False, and nothing is added, if there is no room; the first always fits.
  bool Add(absl::string_view key, uint8_t number, const Outgoing& outgoing, bool announced);

  size_t bytes() const { return bytes_; }
  // Writes the bundle to `memory` of bytes() bytes.
  void Write(void* memory) const;

 private:
  struct Entry {
    absl::string_view key;
    uint8_t number;
    const Outgoing* outgoing;
    bool announced;
  };
  std::vector<Entry> entries_;
  size_t bytes_ = sizeof(uint64_t);
};

// A received entry, within its bundle's memory.
struct Arrival {
  absl::string_view key;
  uint8_t number = 0;
  bool announced = false;  // Its view.bytes bytes come under another key: see DataKey.
  sealane_view view;       // Not checked any further; Read does.
};

// Reads the entries of a bundle; fails if it is not one.
absl::Status ReadBundle(const sealane_view& bundle, std::vector<Arrival>* arrivals);

// An entry that came before it was asked for; owns its memory.
class Parked {
 public:
  explicit Parked(const Arrival& arrival);
  Arrival arrival() const;
  // Including overhead.
  size_t bytes() const { return kOverhead + words_.size() * sizeof(uint64_t); }

 private:
  static constexpr size_t kOverhead = 256;
  std::vector<uint64_t> words_;
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_BUNDLE_H_
