// Tensors as Sealane sees them, and checks of a peer's bytes before TensorFlow sees them.
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

// The DLPack type of a TensorFlow type sent as its bytes; none for strings, resources, variants, quantised and 4-bit types, which go as in
// gRPC: as a TensorProto, in bytes of the type SEALANE_OPAQUE.
struct PlainType {
  uint8_t code;
  uint8_t bits;
};
std::optional<PlainType> PlainTypeOf(tensorflow::DataType type);

// A tensor as given to Sealane, by itself or in a bundle: type, shape, bytes. Owns what those point into. Not copied or moved, as sources
// point into it.
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
  // Moves the bytes to `memory`, which must hold bytes() and is freed with sealane_free.
  void MoveTo(void* memory);
  // The memory must not change until `release` is called. `described`: with type and shape, which an announcement has told otherwise.
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

// A received tensor, checked: its length matches type and shape.
struct Incoming {
  bool dead = false;
  tensorflow::DataType type = tensorflow::DT_INVALID;  // DT_INVALID: it is a TensorProto.
  tensorflow::TensorShape shape;
  const void* data = nullptr;
  size_t bytes = 0;
};
absl::Status Read(const sealane_view& view, Incoming* incoming);

// The key under which the bytes of an announced tensor come. `number`: see Step::NumberOf.
std::string DataKey(absl::string_view key, uint8_t number);

// Up to this many bytes travel in the daemon's ring, copied when sent.
constexpr size_t kInlineBytes = 512;

absl::Status StatusOf(const sealane_error* error);
// As StatusOf; frees the error.
absl::Status Take(sealane_error* error);

inline sealane_text TextOf(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_TENSORS_H_
