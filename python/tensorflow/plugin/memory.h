// Where tensors lie that go to another task or come from one: in memory that is shared with the daemon.
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

// Memory of a task's arena, and of the heap where the arena has no room. It is never deleted, as tensors of it may outlive their server.
class ArenaAllocator : public tensorflow::Allocator {
 public:
  // Until this is called, all memory is the heap's. Called again when the task was attached anew, to another arena.
  void Use(sealane_task* task);
  // No more memory is taken from the arena: its task is detached.
  void Forget() { task_.store(nullptr); }

  std::string Name() override { return "sealane_arena"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override;
  void DeallocateRaw(void* memory) override;

  // Memory of the arena alone. ResourceExhausted if it has no room, Unavailable while the daemon is away.
  absl::Status AllocateShared(size_t bytes, void** memory);
  // The same; null if there is none.
  void* AllocateShared(size_t bytes);
  // Whether memory is of the arena, or of one that the task had before.
  bool Holds(const void* memory) const;
  // Whether the daemon reads memory without a copy: it is of the arena that it shares now.
  bool Shares(const void* memory) const;

  // Whether the CUDA driver has pinned the arena, so that GPUs copy from and to it as fast as they can. Asks it once an arena, in the
  // context of this device.
  bool Pinned(int device);

  // Makes a tensor of what came into the arena, without a copy; takes `came` over. False, and nothing is taken, where it came elsewhere, or
  // where too much of the arena is kept so: a variable may keep its value for ever, and what comes needs room.
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
  // Arenas of a task: a new one after each restart of the daemon. When all are used, memory is the heap's.
  static constexpr int kRanges = 64;

  friend class KeptBuffer;

  std::atomic<sealane_task*> task_{nullptr};
  std::atomic<bool> unusable_{false};  // There is a task, and its arena could not be taken into use.
  Range ranges_[kRanges];
  std::atomic<int> count_{0};
  std::atomic<size_t> kept_{0};
  std::mutex pinning_;
  int pinned_of_ ABSL_GUARDED_BY(pinning_) = 0;  // The arena that was asked for last, by its number from 1.
  bool pinned_ ABSL_GUARDED_BY(pinning_) = false;
};

// The CPU, with an arena for what TensorFlow says will go to another task.
class ArenaDevice : public tensorflow::ThreadPoolDevice {
 public:
  ArenaDevice(const tensorflow::SessionOptions& options, const tensorflow::Device& like, ArenaAllocator* arena);

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;

 private:
  ArenaAllocator* const arena_;
};

// The devices of a server as TensorFlow makes them, with each CPU replaced by an ArenaDevice.
absl::Status MakeDevices(const tensorflow::ConfigProto& config, const std::string& prefix, ArenaAllocator* arena,
                         std::unique_ptr<tensorflow::DeviceMgr>* devices);

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_MEMORY_H_
