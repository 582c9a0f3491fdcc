#include "address_book.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/logging.h"

namespace sealane_tensorflow {


std::string Peer::Address() const {
  std::shared_lock lock(mu_);
  return address_;
}

void Peer::SetAddress(const std::string& address) {
  std::lock_guard lock(mu_);
  address_ = address;
}

void Peer::SetRoute(const std::string& own, absl::string_view route, absl::string_view why) {
  std::lock_guard lock(mu_);
  if (route_ == route) return;
  route_ = std::string(route);
  why_ = std::string(why);
  std::string line = absl::StrCat("Sealane: tensors between ", own, " and ", name, " go by ", route == "grpc" ? "gRPC: " : "Sealane", why);
  if (route == "grpc") {
    LOG(WARNING) << line;
  } else {
    LOG(INFO) << line;
  }
}

std::pair<std::string, std::string> Peer::Route() const {
  std::shared_lock lock(mu_);
  return {route_, why_};
}

void AddressBook::Learn(const tensorflow::ClusterDef& cluster) {
  std::lock_guard lock(mu_);
  for (const auto& job : cluster.job()) {
    for (const auto& [index, address] : job.tasks()) {
      // Port 0 is no address: it stands for a server that lets the system choose its port.
      if (address.empty() || absl::EndsWith(address, ":0")) continue;
      FindByName(absl::StrCat("/job:", job.name(), "/replica:0/task:", index))->SetAddress(address);
    }
  }
}

Peer* AddressBook::Find(const tensorflow::DeviceNameUtils::ParsedName& device) {
  std::string name = absl::StrCat("/job:", device.job, "/replica:", device.has_replica ? device.replica : 0, "/task:", device.task);
  std::lock_guard lock(mu_);
  return FindByName(name);
}

Peer* AddressBook::FindByName(const std::string& name) {
  std::unique_ptr<Peer>& peer = peers_[name];
  if (peer == nullptr) peer = std::make_unique<Peer>(name);
  return peer.get();
}

std::vector<Peer*> AddressBook::All() const {
  std::shared_lock lock(mu_);
  std::vector<Peer*> all;
  for (const auto& [name, peer] : peers_) all.push_back(peer.get());
  return all;
}

}  // namespace sealane_tensorflow
