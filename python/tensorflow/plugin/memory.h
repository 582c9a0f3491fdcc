// Memory, shared with the daemon, for tensors that go to or come from another task.
#ifndef SEALANE_TENSORFLOW_MEMORY_H_
#define SEALANE_TENSORFLOW_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "sealane.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/public/session_options.h"

namespace sealane_tensorflow {

// Memory of a task's arena, or of the heap when the arena has no room. Never deleted, as its tensors may outlive their server.
class ArenaAllocator : public tensorflow::Allocator {
 public:
  // Until this is called, all memory is from the heap. Called again when the task has attached anew, with another arena.
  void Use(sealane_task* task);
  // Takes no more memory from the arena: its task is detached.
  void Forget() { task_.store(nullptr); }

  std::string Name() override { return "sealane_arena"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override;
  void DeallocateRaw(void* memory) override;

  // Arena memory only. ResourceExhausted if there is no room, Unavailable while the daemon is away.
  absl::Status AllocateShared(size_t bytes, void** memory);
  // The same; null on failure.
  void* AllocateShared(size_t bytes);
  // Whether memory is in the arena, or in an earlier one of the task.
  bool Holds(const void* memory) const;
  // Whether the daemon reads this memory without a copy: it is in the arena shared now.
  bool Shares(const void* memory) const;

  // Whether the CUDA driver has pinned the arena, so that GPUs copy to and from it at full speed. Asks the driver once per arena, in the
  // context of `device`.
  bool Pinned(int device);

  // Makes a tensor over what came into the arena, without a copy; takes ownership of `came`. False, and nothing is taken, if it came
  // elsewhere or too much of the arena is kept this way: a variable may keep its value forever, and arrivals need room.
  bool Keep(sealane_tensor* came, tensorflow::DataType type, const tensorflow::TensorShape& shape, const void* data, size_t bytes,
            tensorflow::Tensor* tensor);

 private:
  struct Range {
    uintptr_t start, end;
    bool Holds(const void* memory) const {
      const auto at = reinterpret_cast<uintptr_t>(memory);
      return start <= at && at < end;
    }
  };
  // Arenas of a task, one more after each restart of the daemon. When all are used, memory is from the heap.
  static constexpr int kRanges = 64;

  friend class KeptBuffer;

  std::atomic<sealane_task*> task_{nullptr};
  std::atomic<bool> unusable_{false};  // Attached, but the arena cannot be used.
  Range ranges_[kRanges];
  std::atomic<int> count_{0};
  std::atomic<size_t> kept_{0};
  std::mutex pinning_;
  int pinned_of_ ABSL_GUARDED_BY(pinning_) = 0;  // The arena last tried, counted from 1.
  bool pinned_ ABSL_GUARDED_BY(pinning_) = false;
};

// The CPU, with arena memory for what TensorFlow says will go to another task.
class ArenaDevice : public tensorflow::ThreadPoolDevice {
 public:
  ArenaDevice(const tensorflow::SessionOptions& options, const tensorflow::Device& like, ArenaAllocator* arena);

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;

 private:
  ArenaAllocator* const arena_;
};

// A server's devices as TensorFlow makes them, with each CPU replaced by an ArenaDevice.
absl::Status MakeDevices(const tensorflow::ConfigProto& config, const std::string& prefix, ArenaAllocator* arena,
                         std::unique_ptr<tensorflow::DeviceMgr>* devices);

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_MEMORY_H_
