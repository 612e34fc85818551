#include "pipeline/ranks/host_sharing.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/hosts.h"

namespace zoetrope::pipeline {
namespace {

class SharedBuffer final : public io::WeightBuffer {
 public:
  // Not mapped where that fails.
  SharedBuffer(int descriptor, size_t bytes) : bytes_(bytes) {
    struct stat file {};
    if (descriptor < 0 || ::fstat(descriptor, &file) != 0 || static_cast<size_t>(file.st_size) != bytes) return;
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (mapped == MAP_FAILED) return;
    ::madvise(mapped, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(mapped);
  }
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;
  ~SharedBuffer() override {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  std::byte* data() const override { return data_; }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

// Where the first process has the memory. The token is in it: elsewhere, on another machine or in another container of
// the same host name, the same path is something else.
struct Place {
  int64_t process = 0;
  int64_t descriptor = -1;
  uint64_t token = 0;
};

class Host final : public io::HostSharing {
 public:
  explicit Host(std::unique_ptr<comm::Communicator> ranks) : ranks_(std::move(ranks)) {}

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  bool all(bool mine) override { return on_every_rank(*ranks_, mine); }
  void barrier() override { ranks_->barrier(); }

  std::unique_ptr<io::WeightBuffer> allocate(size_t bytes) override {
    const bool first = rank() == 0;
    const size_t size = std::max(bytes, sizeof(uint64_t));
    const Descriptor made(first ? ::memfd_create("zoetrope weights", MFD_CLOEXEC) : -1);
    std::unique_ptr<SharedBuffer> buffer;
    Place place;
    if (first) {
      static_cast<void>(::ftruncate(made.value(), static_cast<off_t>(size)));  // the buffer looks at its size
      buffer = std::make_unique<SharedBuffer>(made.value(), size);
      place = {::getpid(), made.value(), std::random_device()() | uint64_t{std::random_device()()} << 32};
      if (buffer->data() != nullptr) std::memcpy(buffer->data(), &place.token, sizeof place.token);
    }
    ranks_->broadcast(0, &place, sizeof place, "the place of shared weights");
    if (!first) {
      const std::string path = fmt::format("/proc/{}/fd/{}", place.process, place.descriptor);
      const Descriptor opened(place.descriptor < 0 ? -1 : ::open(path.c_str(), O_RDWR | O_CLOEXEC));
      buffer = std::make_unique<SharedBuffer>(opened.value(), size);
    }
    const bool seen = buffer->data() != nullptr && std::memcmp(buffer->data(), &place.token, sizeof place.token) == 0;
    if (!all(seen)) return nullptr;
    barrier();  // everybody has looked
    if (first) std::memset(buffer->data(), 0, sizeof place.token);
    barrier();
    return buffer;
  }

 private:
  std::unique_ptr<comm::Communicator> ranks_;
};

}  // namespace

std::unique_ptr<io::HostSharing> host_sharing(std::unique_ptr<comm::Communicator> host) {
  return std::make_unique<Host>(std::move(host));
}

std::unique_ptr<io::HostSharing> share_host(comm::Communicator& world) {
  const std::vector<std::string> hosts = hosts_of_ranks(world);
  const auto first = std::find(hosts.begin(), hosts.end(), hosts[static_cast<size_t>(world.rank())]);
  std::unique_ptr<comm::Communicator> host = world.split(static_cast<int>(first - hosts.begin()), world.rank());
  if (host->size() == 1) return nullptr;
  return host_sharing(std::move(host));
}

}  // namespace zoetrope::pipeline
