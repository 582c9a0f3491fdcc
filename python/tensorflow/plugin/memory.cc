#include "memory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "alone.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensors.h"

namespace sealane_tensorflow {

using tensorflow::Allocator;
using tensorflow::Tensor;
using tensorflow::TensorBuffer;

void ArenaAllocator::Use(sealane_task* task) {
  const void* start = nullptr;
  size_t bytes = 0;
  task_.store(nullptr);
  unusable_ = false;
  if (!Take(sealane_arena_range(task, &start, &bytes)).ok() || bytes == 0) return;
  Range range = {reinterpret_cast<uintptr_t>(start), reinterpret_cast<uintptr_t>(start) + bytes};
  int count = count_.load();
  if (count == 0 || ranges_[count - 1].start != range.start || ranges_[count - 1].end != range.end) {
    unusable_ = count == kRanges;
    if (unusable_) return;
    // A block that is never freed keeps the arena's addresses from being reused for other memory.
    void* block = nullptr;
    if (!Take(sealane_alloc(task, 1, &block)).ok()) return;
    ranges_[count] = range;
    count_.store(count + 1, std::memory_order_release);
  }
  task_.store(task, std::memory_order_release);
}

bool ArenaAllocator::Holds(const void* memory) const {
  for (int i = count_.load(std::memory_order_acquire) - 1; i >= 0; --i)
    if (ranges_[i].Holds(memory)) return true;
  return false;
}

bool ArenaAllocator::Shares(const void* memory) const {
  const int count = count_.load(std::memory_order_acquire);
  return count > 0 && !unusable_ && ranges_[count - 1].Holds(memory);
}

bool ArenaAllocator::Pinned(int device) {
  sealane_task* task = task_.load(std::memory_order_acquire);
  if (task == nullptr) return false;
  std::lock_guard lock(pinning_);
  if (const int count = count_.load(); pinned_of_ != count) {
    const absl::Status status = Take(sealane_pin(task, device));
    pinned_of_ = count;
    pinned_ = status.ok();
    if (pinned_) {
      LOG(INFO) << "Sealane: tensors of GPUs are copied to and from the arena, which is pinned";
    } else {
      LOG(WARNING) << "Sealane: tensors of GPUs are copied twice, as the arena is not pinned: " << status.message();
    }
  }
  return pinned_;
}

absl::Status ArenaAllocator::AllocateShared(size_t bytes, void** memory) {
  sealane_task* task = task_.load(std::memory_order_acquire);
  if (task == nullptr && unusable_) return absl::ResourceExhaustedError("Sealane: the task has no arena that can be used");
  if (task == nullptr) return absl::UnavailableError("Sealane: the task is not attached");
  absl::Status status = Take(sealane_alloc(task, bytes, memory));
  if (absl::IsResourceExhausted(status)) {
    status = absl::ResourceExhaustedError(absl::StrCat("the arena has no room for ", bytes, " bytes, see SEALANE_TF_ARENA_BYTES"));
  }
  TF_RETURN_IF_ERROR(status);
  if (Holds(*memory)) return absl::OkStatus();
  sealane_free(std::exchange(*memory, nullptr));  // From a newer arena: Use follows.
  return absl::UnavailableError("Sealane: the task is being attached again");
}

void* ArenaAllocator::AllocateShared(size_t bytes) {
  void* memory = nullptr;
  return AllocateShared(bytes, &memory).ok() ? memory : nullptr;
}

void* ArenaAllocator::AllocateRaw(size_t alignment, size_t bytes) {
  // Shorter tensors travel in the daemon's ring, from any memory. Sealane aligns as TensorFlow does.
  if (bytes > kInlineBytes && alignment <= Allocator::kAllocatorAlignment) {
    if (void* memory = AllocateShared(bytes)) return memory;
  }
  return tensorflow::cpu_allocator_base()->AllocateRaw(alignment, bytes);
}

void ArenaAllocator::DeallocateRaw(void* memory) {
  if (Holds(memory)) {
    sealane_free(memory);
  } else {
    tensorflow::cpu_allocator_base()->DeallocateRaw(memory);
  }
}

ArenaDevice::ArenaDevice(const tensorflow::SessionOptions& options, const tensorflow::Device& like, ArenaAllocator* arena)
    : ThreadPoolDevice(options, like.name(), tensorflow::Bytes(like.attributes().memory_limit()), like.attributes().locality(),
                       tensorflow::ProcessState::singleton()->GetCPUAllocator(like.NumaNode())),
      arena_(arena) {}

Allocator* ArenaDevice::GetAllocator(tensorflow::AllocatorAttributes attributes) {
  return attributes.nic_compatible() ? arena_ : ThreadPoolDevice::GetAllocator(attributes);
}

absl::Status MakeDevices(const tensorflow::ConfigProto& config, const std::string& prefix, ArenaAllocator* arena,
                         std::unique_ptr<tensorflow::DeviceMgr>* devices) {
  tensorflow::SessionOptions options;
  options.config = config;
  std::vector<std::unique_ptr<tensorflow::Device>> made;
  TF_RETURN_IF_ERROR(tensorflow::DeviceFactory::AddDevices(options, prefix, &made));
  for (auto& device : made)
    if (device->device_type() == tensorflow::DEVICE_CPU) device = std::make_unique<ArenaDevice>(options, *device, arena);
  *devices = std::make_unique<tensorflow::StaticDeviceMgr>(std::move(made));
  return absl::OkStatus();
}

// Memory of a received tensor, freed with the last tensor over it.
class KeptBuffer : public TensorBuffer {
 public:
  KeptBuffer(ArenaAllocator* arena, sealane_tensor* came, const void* data, size_t bytes)
      : TensorBuffer(const_cast<void*>(data)), arena_(arena), came_(came), bytes_(bytes) {}
  ~KeptBuffer() override {
    sealane_tensor_free(came_);
    arena_->kept_ -= bytes_;
  }
  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocator_name(arena_->Name());
  }

 private:
  ArenaAllocator* const arena_;
  sealane_tensor* const came_;
  const size_t bytes_;
};

bool ArenaAllocator::Keep(sealane_tensor* came, tensorflow::DataType type, const tensorflow::TensorShape& shape, const void* data, size_t bytes,
                          Tensor* tensor) {
  if (came == nullptr || bytes < kAnnouncedBytes || !Holds(data)) return false;
  const Range& arena = ranges_[count_.load(std::memory_order_acquire) - 1];
  if (kept_.fetch_add(bytes) + bytes > (arena.end - arena.start) / 2) {
    kept_ -= bytes;
    return false;
  }
  *tensor = Tensor(type, shape, tensorflow::core::RefCountPtr<TensorBuffer>(new KeptBuffer(this, came, data, bytes)));
  return true;
}

}  // namespace sealane_tensorflow
