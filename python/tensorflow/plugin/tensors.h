// What a tensor looks like to Sealane, and what a peer's bytes must be before TensorFlow sees them.
#ifndef SEALANE_TENSORFLOW_TENSORS_H_
#define SEALANE_TENSORFLOW_TENSORS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "sealane.h"
#include "tensorflow/core/framework/tensor.h"

namespace sealane_tensorflow {

// A DLPack type for those of TensorFlow's that are sent as their bytes; nothing for strings, resources, variants, quantised and 4-bit
// types, which travel as gRPC has them: as a TensorProto, in bytes of the type SEALANE_OPAQUE.
struct PlainType {
  uint8_t code;
  uint8_t bits;
};
std::optional<PlainType> PlainTypeOf(tensorflow::DataType type);

// A tensor as it goes to Sealane, by itself or in a bundle: type, shape, bytes. Holds what those point into. Not copied or moved: `source` points at `dims_`.
class Outgoing {
 public:
  Outgoing() = default;
  Outgoing(const Outgoing&) = delete;
  Outgoing& operator=(const Outgoing&) = delete;

  void SetDead();
  // A tensor in host memory. Fails if it cannot be serialised.
  absl::Status Set(const tensorflow::Tensor& tensor);

  const sealane_meta& meta() const { return meta_; }
  size_t bytes() const { return bytes_; }
  // Whether Sealane knows its type.
  bool plain() const { return meta_.code != SEALANE_OPAQUE; }
  const void* data() const { return data_; }
  // Copies the bytes to memory of as many, which is freed by sealane_free.
  void MoveTo(void* memory);
  // The memory must stay as it is until the release was called. `described`: with its type and shape, which an announcement has said else.
  sealane_source Source(bool described, sealane_release release, void* context) const;

 private:
  tensorflow::Tensor tensor_;
  std::string proto_;
  std::unique_ptr<void, void (*)(void*)> moved_{nullptr, sealane_free};
  std::vector<uint64_t> dims_;
  sealane_meta meta_ = {SEALANE_UINT, 8, 1, 0, 0, 0, nullptr};
  const void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// What came, checked: its length is what type and shape say.
struct Incoming {
  bool dead = false;
  tensorflow::DataType type = tensorflow::DT_INVALID;  // DT_INVALID: it is a TensorProto.
  tensorflow::TensorShape shape;
  const void* data = nullptr;
  size_t bytes = 0;
};
absl::Status Read(const sealane_view& view, Incoming* incoming);

// The key under which the bytes of a tensor come that was announced. `number`: see Step::NumberOf.
std::string DataKey(absl::string_view key, uint8_t number);

// Bytes up to this travel in the daemon's ring, copied when they are sent.
constexpr size_t kInlineBytes = 512;

absl::Status StatusOf(const sealane_error* error);
// As StatusOf; frees the error.
absl::Status Take(sealane_error* error);

inline sealane_text TextOf(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_TENSORS_H_
