#include "tensors.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/types.h"

namespace sealane_tensorflow {
namespace {

using tensorflow::DataType;
using tensorflow::Tensor;
using tensorflow::TensorProto;
using tensorflow::TensorShape;

struct Row {
  DataType type;
  PlainType plain;
};

// DLPack 1.1, DLDataTypeCode; its codes from 7 on are the 8-bit floats.
constexpr Row kRows[] = {
    {tensorflow::DT_FLOAT, {SEALANE_FLOAT, 32}},      {tensorflow::DT_DOUBLE, {SEALANE_FLOAT, 64}},
    {tensorflow::DT_HALF, {SEALANE_FLOAT, 16}},       {tensorflow::DT_BFLOAT16, {SEALANE_BFLOAT, 16}},
    {tensorflow::DT_INT8, {SEALANE_INT, 8}},          {tensorflow::DT_INT16, {SEALANE_INT, 16}},
    {tensorflow::DT_INT32, {SEALANE_INT, 32}},        {tensorflow::DT_INT64, {SEALANE_INT, 64}},
    {tensorflow::DT_UINT8, {SEALANE_UINT, 8}},        {tensorflow::DT_UINT16, {SEALANE_UINT, 16}},
    {tensorflow::DT_UINT32, {SEALANE_UINT, 32}},      {tensorflow::DT_UINT64, {SEALANE_UINT, 64}},
    {tensorflow::DT_BOOL, {SEALANE_BOOL, 8}},         {tensorflow::DT_COMPLEX64, {SEALANE_COMPLEX, 64}},
    {tensorflow::DT_COMPLEX128, {SEALANE_COMPLEX, 128}}, {tensorflow::DT_FLOAT8_E4M3FN, {10, 8}},
    {tensorflow::DT_FLOAT8_E5M2, {12, 8}},
};

DataType TypeOf(const sealane_meta& meta) {
  if (meta.lanes != 1) return tensorflow::DT_INVALID;
  for (const Row& row : kRows)
    if (row.plain.code == meta.code && row.plain.bits == meta.bits) return row.type;
  return tensorflow::DT_INVALID;
}

absl::Status BadBytes(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("Sealane: a peer's tensor was refused: ", what));
}

absl::Status ShapeOf(const sealane_meta& meta, TensorShape* shape) {
  if (meta.rank > TensorShape::MaxDimensions()) {
    return BadBytes(absl::StrCat(static_cast<int>(meta.rank), " dimensions"));
  }
  for (int i = 0; i < meta.rank; ++i) {
    if (meta.dims[i] > static_cast<uint64_t>(INT64_MAX)) return BadBytes("a dimension beyond 2^63");
    // Fails if there would be more than 2^63 elements.
    absl::Status added = shape->AddDimWithStatus(static_cast<int64_t>(meta.dims[i]));
    if (!added.ok()) return BadBytes(added.message());
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<PlainType> PlainTypeOf(DataType type) {
  for (const Row& row : kRows)
    if (row.type == type) return row.plain;
  return std::nullopt;
}

void Outgoing::SetDead() { meta_.flags = SEALANE_DEAD; }

absl::Status Outgoing::Set(const Tensor& tensor) {
  std::optional<PlainType> plain = PlainTypeOf(tensor.dtype());
  if (!plain.has_value()) {
    TensorProto proto;
    tensor.AsProtoTensorContent(&proto);
    if (!proto.SerializeToString(&proto_)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Sealane: a tensor of ", tensor.DebugString(), " cannot be serialized: it is longer than 2 GiB"));
    }
    dims_.assign(1, proto_.size());
    meta_ = {SEALANE_OPAQUE, 8, 1, 0, 1, 0, dims_.data()};
    data_ = proto_.data();
    bytes_ = proto_.size();
    return absl::OkStatus();
  }
  meta_.code = plain->code;
  meta_.bits = plain->bits;
  meta_.rank = static_cast<uint8_t>(tensor.dims());
  for (int i = 0; i < tensor.dims(); ++i) dims_.push_back(static_cast<uint64_t>(tensor.dim_size(i)));
  meta_.dims = dims_.data();
  tensor_ = tensor;
  bytes_ = static_cast<size_t>(tensor.NumElements()) * (plain->bits / 8);
  data_ = bytes_ == 0 ? nullptr : tensor_.data();
  return absl::OkStatus();
}

sealane_source Outgoing::Source(bool described, sealane_release release, void* context) const {
  const sealane_meta raw = {SEALANE_OPAQUE, 8, 1, 0, 1, 0, &bytes_};
  return {described ? meta_ : raw, data_, bytes_, release, context};
}

void Outgoing::MoveTo(void* memory) {
  std::memcpy(memory, data_, bytes_);
  moved_.reset(memory);
  data_ = memory;
  tensor_ = Tensor();
  proto_.clear();
}

absl::Status Read(const sealane_view& view, Incoming* incoming) {
  if (view.meta.flags == SEALANE_DEAD) {
    incoming->dead = true;
    return absl::OkStatus();
  }
  if (view.meta.flags != 0) return BadBytes("flags that the plugin never sends");
  incoming->data = view.data;
  incoming->bytes = view.bytes;
  if (view.meta.code == SEALANE_OPAQUE) {
    return view.meta.bits == 8 ? absl::OkStatus() : BadBytes("opaque, and not of bytes");
  }
  incoming->type = TypeOf(view.meta);
  if (incoming->type == tensorflow::DT_INVALID) {
    return BadBytes(absl::StrCat("TensorFlow has no type of DLPack's code ", static_cast<int>(view.meta.code), " with ",
                                 static_cast<int>(view.meta.bits), " bits and ", view.meta.lanes, " lanes"));
  }
  TF_RETURN_IF_ERROR(ShapeOf(view.meta, &incoming->shape));
  // Divides, as the product may overflow.
  size_t element = view.meta.bits / 8;
  if (view.bytes % element != 0 || static_cast<uint64_t>(incoming->shape.num_elements()) != view.bytes / element) {
    return BadBytes(absl::StrCat(view.bytes, " bytes for shape ", incoming->shape.DebugString()));
  }
  return absl::OkStatus();
}

std::string DataKey(absl::string_view key, uint8_t number) {
  return number == 0 ? absl::StrCat(key, ";data") : absl::StrCat(key, ";data", int{number});
}

absl::Status StatusOf(const sealane_error* error) {
  if (error == nullptr) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(sealane_error_code(error)),
                      absl::StrCat("Sealane: ", sealane_error_message(error)));
}

absl::Status Take(sealane_error* error) {
  absl::Status status = StatusOf(error);
  sealane_error_free(error);
  return status;
}

}  // namespace sealane_tensorflow
