// A device for the tests, of type FAKE, as a GPU is to TensorFlow's runtime: its memory is not the host's, and copies to and from it are made
// later, on a thread of its own. What is written there without such a copy, or read, or too soon, is not what it should be. Tests tell it to
// hold copies, to let them fail, and to have no room.
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/local_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"
#include "tensorflow/core/kernels/identity_op.h"
#include "tensorflow/core/public/session_options.h"

namespace {

using tensorflow::AllocatorAttributes;
using tensorflow::Device;
using tensorflow::StatusCallback;
using tensorflow::Tensor;
using tensorflow::Variant;

constexpr char kType[] = "FAKE";
// What lies in the device's memory is XORed with this.
constexpr unsigned char kCode = 0xa5;

class Memory : public tensorflow::Allocator {
 public:
  static Memory* Get() {
    static auto* memory = new Memory;
    return memory;
  }

  std::string Name() override { return "fake"; }
  tensorflow::AllocatorMemoryType GetMemoryType() const override { return tensorflow::AllocatorMemoryType::kDevice; }

  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (room >= 0 && bytes > static_cast<size_t>(room)) return nullptr;
    void* memory = tensorflow::cpu_allocator_base()->AllocateRaw(alignment, bytes);
    std::memset(memory, 0xee, bytes);
    std::lock_guard lock(mu_);
    blocks_[reinterpret_cast<uintptr_t>(memory)] = bytes;
    return memory;
  }

  void DeallocateRaw(void* memory) override {
    if (memory == nullptr) return;
    {
      std::lock_guard lock(mu_);
      auto found = blocks_.find(reinterpret_cast<uintptr_t>(memory));
      CHECK(found != blocks_.end()) << "not the fake device's memory";
      std::memset(memory, 0xdd, found->second);
      blocks_.erase(found);
    }
    tensorflow::cpu_allocator_base()->DeallocateRaw(memory);
  }

  bool Has(const void* memory) {
    auto at = reinterpret_cast<uintptr_t>(memory);
    std::lock_guard lock(mu_);
    auto after = blocks_.upper_bound(at);
    return after != blocks_.begin() && at < std::prev(after)->first + std::prev(after)->second;
  }

  int64_t Blocks() {
    std::lock_guard lock(mu_);
    return static_cast<int64_t>(blocks_.size());
  }

  std::atomic<int64_t> room{-1};  // The most bytes at a time; below zero: no such bound.

 private:
  std::mutex mu_;
  std::map<uintptr_t, size_t> blocks_;
};

enum Direction { kFromDevice = 0, kToDevice = 1 };

// Makes copies one after the other, each way.
class Copier {
 public:
  static Copier* Of(Direction direction) {
    static auto* copiers = new Copier[2];
    return &copiers[direction];
  }

  void Copy(const Tensor& from, Tensor* to, Direction direction, StatusCallback done) {
    absl::Status status;
    if (!tensorflow::DataTypeCanUseMemcpy(from.dtype())) {
      status = absl::InternalError(absl::StrCat("the fake device cannot copy tensors of ", tensorflow::DataTypeString(from.dtype())));
    } else if (from.dtype() != to->dtype() || from.TotalBytes() != to->TotalBytes()) {
      status = absl::InternalError("the fake device cannot copy to a tensor of another type or size");
    }
    const void* source = status.ok() && from.TotalBytes() > 0 ? from.data() : nullptr;
    void* destination = status.ok() && from.TotalBytes() > 0 ? to->data() : nullptr;
    if (status.ok() && from.TotalBytes() > 0) {
      const bool from_device = Memory::Get()->Has(source), to_device = Memory::Get()->Has(destination);
      if (destination == nullptr || from_device != (direction == kFromDevice) || to_device != (direction == kToDevice)) {
        status = absl::InternalError("the fake device was given memory of the wrong place to copy");
      }
    }
    std::lock_guard lock(mu_);
    queue_.push_back({from, source, destination, from.TotalBytes(), std::move(status), std::move(done)});
    if (thread_ == nullptr) thread_ = new std::thread([this] { Run(); });
    changed_.notify_all();
  }

  void Hold(bool held) {
    std::lock_guard lock(mu_);
    held_ = held;
    changed_.notify_all();
  }
  void Fail(bool failing) {
    std::lock_guard lock(mu_);
    failing_ = failing;
  }
  int64_t Waiting() {
    std::lock_guard lock(mu_);
    return static_cast<int64_t>(queue_.size());
  }
  int64_t Copied() {
    std::lock_guard lock(mu_);
    return copied_;
  }

 private:
  struct Work {
    Tensor from;  // Kept here, as the runtime does not.
    const void* source;
    void* destination;
    size_t bytes;
    absl::Status status;
    StatusCallback done;
  };

  void Run() {
    for (;;) {
      Work work;
      {
        std::unique_lock lock(mu_);
        changed_.wait(lock, [this] { return !held_ && !queue_.empty(); });
        work = std::move(queue_.front());
        queue_.pop_front();
        if (failing_) work.status.Update(absl::InternalError("the fake device was told to fail"));
      }
      // Longer than the caller takes to go on, so that who does not wait for the copy is found out.
      usleep(300);
      if (work.status.ok() && work.bytes > 0) {
        auto* from = static_cast<const unsigned char*>(work.source);
        auto* to = static_cast<unsigned char*>(work.destination);
        for (size_t i = 0; i < work.bytes; ++i) to[i] = from[i] ^ kCode;
      }
      {
        std::lock_guard lock(mu_);
        if (work.status.ok() && work.bytes > 0) ++copied_;
      }
      work.done(work.status);
    }
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::thread* thread_ = nullptr;  // For good.
  bool held_ = false, failing_ = false;
  int64_t copied_ = 0;
};

class Context : public tensorflow::DeviceContext {
 public:
  void CopyCPUTensorToDevice(const Tensor* host, Device*, Tensor* on_device, StatusCallback done, bool) const override {
    Copier::Of(kToDevice)->Copy(*host, on_device, kToDevice, std::move(done));
  }
  void CopyDeviceTensorToCPU(const Tensor* on_device, absl::string_view, Device*, Tensor* host, StatusCallback done) override {
    Copier::Of(kFromDevice)->Copy(*on_device, host, kFromDevice, std::move(done));
  }
};

class FakeDevice : public tensorflow::LocalDevice {
 public:
  FakeDevice(const tensorflow::SessionOptions& options, const std::string& name)
      : LocalDevice(options, BuildDeviceAttributes(name, tensorflow::DeviceType(kType), tensorflow::Bytes(1 << 30), {})) {
    // gRPC's service looks for this to know that a tensor is not in host memory.
    info_.default_context = context_;
    set_tensorflow_accelerator_device_info(&info_);
  }
  ~FakeDevice() override { context_->Unref(); }

  absl::Status Sync() override { return absl::OkStatus(); }
  tensorflow::Allocator* GetAllocator(AllocatorAttributes attributes) override {
    return attributes.on_host() ? tensorflow::cpu_allocator() : Memory::Get();
  }
  absl::Status TryGetDeviceContext(tensorflow::DeviceContext** context) override {
    context_->Ref();
    *context = context_;
    return absl::OkStatus();
  }

  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto, const AllocatorAttributes attributes, Tensor* tensor) override {
    Tensor host(proto.dtype());
    if (!host.FromProto(tensorflow::cpu_allocator(), proto)) return absl::InvalidArgumentError("no tensor");
    if (attributes.on_host()) {
      *tensor = host;
      return absl::OkStatus();
    }
    return ToDevice(host, tensor);
  }

 private:
  absl::Status ToDevice(const Tensor& host, Tensor* tensor) {
    if (host.dtype() != tensorflow::DT_VARIANT) {
      *tensor = Tensor(Memory::Get(), host.dtype(), host.shape());
      if (!tensor->IsInitialized()) return absl::ResourceExhaustedError("the fake device has no room");
      return context_->CopyCPUTensorToDeviceSync(&host, this, tensor);
    }
    *tensor = Tensor(tensorflow::cpu_allocator(), host.dtype(), host.shape());
    for (int64_t i = 0; i < host.NumElements(); ++i) {
      absl::Status status = tensorflow::VariantDeviceCopy(
          tensorflow::VariantDeviceCopyDirection::HOST_TO_DEVICE, host.flat<Variant>()(i), &tensor->flat<Variant>()(i),
          [this](const Tensor& from, Tensor* to) { return ToDevice(from, to); });
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  Context* const context_ = new Context;
  AcceleratorDeviceInfo info_;
};

class Factory : public tensorflow::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back(absl::StrCat("/physical_device:", kType, ":0"));
    return absl::OkStatus();
  }
  absl::Status CreateDevices(const tensorflow::SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<Device>>* devices) override {
    devices->push_back(std::make_unique<FakeDevice>(options, absl::StrCat(prefix, "/device:", kType, ":0")));
    return absl::OkStatus();
  }
};

REGISTER_LOCAL_DEVICE_FACTORY(kType, Factory);

// TensorFlow has those of most types for every device; and with it, int32 stays in host memory. These are added.
#define IN_DEVICE_MEMORY(type) REGISTER_KERNEL_BUILDER(Name("Identity").Device(kType).TypeConstraint<type>("T"), tensorflow::IdentityOp)
IN_DEVICE_MEMORY(tensorflow::qint8);
IN_DEVICE_MEMORY(tensorflow::float8_e5m2);

}  // namespace

// --- What the tests call ------------------------------------------------------------------------------------------------------------------

#define TO_TESTS extern "C" __attribute__((visibility("default")))

TO_TESTS void fake_hold(int direction, int held) { Copier::Of(static_cast<Direction>(direction))->Hold(held != 0); }
TO_TESTS void fake_fail(int direction, int failing) { Copier::Of(static_cast<Direction>(direction))->Fail(failing != 0); }
TO_TESTS void fake_room(int64_t bytes) { Memory::Get()->room = bytes; }
TO_TESTS int64_t fake_waiting(int direction) { return Copier::Of(static_cast<Direction>(direction))->Waiting(); }
TO_TESTS int64_t fake_copied(int direction) { return Copier::Of(static_cast<Direction>(direction))->Copied(); }
TO_TESTS int64_t fake_blocks() { return Memory::Get()->Blocks(); }
