// The other tasks of the job: what they are called, where they are, and what went to them and came from them.
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

// Another task of the job. Lives as long as its book.
class Peer {
 public:
  explicit Peer(std::string name) : name(std::move(name)) {}

  const std::string name;  // "/job:ps/replica:0/task:0"
  Traffic by_sealane, by_grpc;
  std::atomic<int64_t> unmet{0};  // Tensors from it that came by gRPC because they were sent in another way than they were waited for.

  // "host:port", as the cluster's definition has it, which is what the endpoint map calls it; empty if none is known.
  std::string Address() const;
  void SetAddress(const std::string& address);

  // How tensors go; logs it if it has changed.
  void SetRoute(const std::string& own, absl::string_view route, absl::string_view why);
  // "sealane", "grpc", or "settling" before the first tensor; and why.
  std::pair<std::string, std::string> Route() const;

 private:
  mutable std::shared_mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);
  std::string route_ ABSL_GUARDED_BY(mu_) = "settling", why_ ABSL_GUARDED_BY(mu_);
};

class AddressBook {
 public:
  // Learns a cluster: of a server, of a session, or of an update of either. The latest address of a task is the one that is tried.
  void Learn(const tensorflow::ClusterDef& cluster);
  // The same, as TensorFlow 2.13 says it of a session that may have none.
  void Learn(const tensorflow::ClusterDef* cluster) {
    if (cluster != nullptr) Learn(*cluster);
  }

  // The task that a device belongs to; made if it was never heard of.
  Peer* Find(const tensorflow::DeviceNameUtils::ParsedName& device);

  std::vector<Peer*> All() const;

 private:
  Peer* FindByName(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable std::shared_mutex mu_;
  std::map<std::string, std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace sealane_tensorflow

#endif  // SEALANE_TENSORFLOW_ADDRESS_BOOK_H_
