#include "bundle.h"

#include <algorithm>
#include <cstring>

#include "alone.h"

namespace sealane_tensorflow {
namespace {

constexpr uint64_t kMagic = 0x316c646e75426c53;  // "SlBundl1"

enum class Kind : uint8_t { kWhole = 0, kAnnounced = 1 };

struct Head {
  Kind kind;
  uint8_t flags, code, bits, rank, number;
  uint16_t key_bytes;
  uint64_t bytes;
};
static_assert(sizeof(Head) == 16, "a format");

constexpr size_t Aligned(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

size_t BytesOf(absl::string_view key, size_t rank, size_t whole) {
  return Aligned(sizeof(Head) + rank * sizeof(uint64_t) + key.size() + whole);
}

absl::Status NoBundle() { return absl::DataLossError("Sealane: a peer's tensor was refused: it is no bundle of this release's"); }

// Reads the entry at `*start`, with `*left` bytes remaining, and advances to the next.
bool ReadEntry(const char** start, size_t* left, Arrival* arrival) {
  Head head;
  if (*left < sizeof head) return false;
  std::memcpy(&head, *start, sizeof head);
  if (head.kind > Kind::kAnnounced) return false;
  arrival->number = head.number;
  arrival->announced = head.kind == Kind::kAnnounced;
  // Longer tensors must be announced: one this long could be made over the memory, which belongs to the bundle.
  if (!arrival->announced && head.bytes >= kAnnouncedBytes) return false;
  const size_t before = sizeof head + head.rank * sizeof(uint64_t) + head.key_bytes;
  if (*left < before || (!arrival->announced && *left - before < head.bytes)) return false;
  const char* key = *start + before - head.key_bytes;
  arrival->key = absl::string_view(key, head.key_bytes);
  // Aligned because entries are.
  const auto* dims = reinterpret_cast<const uint64_t*>(*start + sizeof head);
  arrival->view = {{head.code, head.bits, 1, head.flags, head.rank, 0, dims}, key + head.key_bytes, head.bytes};
  const size_t bytes = std::min(*left, Aligned(before + (arrival->announced ? 0 : head.bytes)));
  *start += bytes;
  *left -= bytes;
  return true;
}

}  // namespace

bool BundleWriter::Add(absl::string_view key, uint8_t number, const Outgoing& outgoing, bool announced) {
  const size_t bytes = BytesOf(key, outgoing.meta().rank, announced ? 0 : outgoing.bytes());
  if (!entries_.empty() && bytes_ + bytes > kBundleBytes) return false;
  entries_.push_back({key, number, &outgoing, announced});
  bytes_ += bytes;
  return true;
}

void BundleWriter::Write(void* memory) const {
  char* at = static_cast<char*>(memory);
  std::memcpy(at, &kMagic, sizeof kMagic);
  at += sizeof kMagic;
  for (const Entry& entry : entries_) {
    const Outgoing& outgoing = *entry.outgoing;
    const sealane_meta& meta = outgoing.meta();
    const Head head = {entry.announced ? Kind::kAnnounced : Kind::kWhole,
                       meta.flags,
                       meta.code,
                       meta.bits,
                       meta.rank,
                       entry.number,
                       static_cast<uint16_t>(entry.key.size()),
                       outgoing.bytes()};
    char* start = at;
    auto put = [&at](const void* from, size_t bytes) {
      if (bytes > 0) std::memcpy(at, from, bytes);
      at += bytes;
    };
    put(&head, sizeof head);
    put(meta.dims, meta.rank * sizeof(uint64_t));
    put(entry.key.data(), entry.key.size());
    if (!entry.announced) put(outgoing.data(), outgoing.bytes());
    const size_t padding = Aligned(static_cast<size_t>(at - start)) - static_cast<size_t>(at - start);
    std::memset(at, 0, padding);
    at += padding;
  }
}

absl::Status ReadBundle(const sealane_view& bundle, std::vector<Arrival>* arrivals) {
  const char* at = static_cast<const char*>(bundle.data);
  size_t left = bundle.bytes;
  if (left < sizeof kMagic || reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) != 0 || std::memcmp(at, &kMagic, sizeof kMagic) != 0) {
    return NoBundle();
  }
  at += sizeof kMagic;
  left -= sizeof kMagic;
  while (left > 0) {
    if (!ReadEntry(&at, &left, &arrivals->emplace_back())) return NoBundle();
  }
  return absl::OkStatus();
}

Parked::Parked(const Arrival& arrival) {
  const sealane_meta& meta = arrival.view.meta;
  const size_t whole = arrival.announced ? 0 : arrival.view.bytes;
  words_.resize(BytesOf(arrival.key, meta.rank, whole) / sizeof(uint64_t));
  // Layout: head, dimensions, key, tensor.
  const char* start = reinterpret_cast<const char*>(meta.dims) - sizeof(Head);
  std::memcpy(words_.data(), start, static_cast<size_t>(arrival.key.data() - start) + arrival.key.size() + whole);
}

Arrival Parked::arrival() const {
  Arrival arrival;
  const char* start = reinterpret_cast<const char*>(words_.data());
  size_t left = words_.size() * sizeof(uint64_t);
  ReadEntry(&start, &left, &arrival);  // Cannot fail: the entry was read before.
  return arrival;
}

}  // namespace sealane_tensorflow
