// The other tasks of the job: their names, addresses and traffic.
#ifndef SEALANE_TENSORFLOW_ADDRESS_BOOK_H_
#define SEALANE_TENSORFLOW_ADDRESS_BOOK_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/protobuf/cluster.pb.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace sealane_tensorflow {

struct Count {
  std::atomic<int64_t> tensors{0}, bytes{0};
  void Add(size_t more) {
    tensors.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(static_cast<int64_t>(more), std::memory_order_relaxed);
  }
};

struct Traffic {
  Count sent, received;
};

// Another task of the job; lives as long as its book.
class Peer {
 public:
  explicit Peer(std::string name) : name(std::move(name)) {}

  const std::string name;  // "/job:ps/replica:0/task:0"
  Traffic by_sealane, by_grpc;
  std::atomic<int64_t> unmet{0};  // Tensors from it that came by gRPC because they were sent one way and awaited another.

  // "host:port" as in the cluster definition, which is also its name in the endpoint map; empty if unknown.
  std::string Address() const;
  void SetAddress(const std::string& address);

  // Sets how tensors go; logs a change.
  void SetRoute(const std::string& own, absl::string_view route, absl::string_view why);
  // "sealane", "grpc", or "settling" before the first tensor; and the reason.
  std::pair<std::string, std::string> Route() const;

 private:
  mutable std::shared_mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);
  std::string route_ ABSL_GUARDED_BY(mu_) = "settling", why_ ABSL_GUARDED_BY(mu_);
};

class AddressBook {
 public:
  // Learns a cluster: a server's, a session's, or an update of either. The latest address of a task is used.
  void Learn(const tensorflow::ClusterDef& cluster);
  // For TensorFlow 2.13, where a session may have none.
  void Learn(const tensorflow::ClusterDef* cluster) {
    if (cluster != nullptr) Learn(*cluster);
  }

  // The task of a device; created if unknown.
  Peer* Find(const tensorflow::DeviceNameUtils::ParsedName& device);

  std::vector<Peer*> All() const;

 private:
  Peer* FindByName(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable std::shared_mutex mu_;
  std::map<std::string, std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ADDRESS_BOOK_H_
