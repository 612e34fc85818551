#include "base/file_map.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/print.h"

namespace zoetrope {

// Slots are reused and never freed, so that a handler can walk them at any time. The name belongs to whoever has the
// mapping, which is not removed while somebody touches it.
struct FileMap::Slot {
  std::atomic<bool> used{true};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::string name;
  Slot* next = nullptr;
};

namespace {

using Slot = FileMap::Slot;

std::atomic<Slot*> first_slot = nullptr;
static_assert(std::atomic<Slot*>::is_always_lock_free && std::atomic<uintptr_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

Slot* own_slot() {
  for (Slot* slot = first_slot; slot != nullptr; slot = slot->next) {
    bool used = false;
    if (slot->used.compare_exchange_strong(used, true)) return slot;
  }
  auto* slot = new Slot;
  slot->next = first_slot;
  while (!first_slot.compare_exchange_weak(slot->next, slot)) {
  }
  return slot;
}

}  // namespace

FileMap::FileMap(int descriptor, size_t bytes, const std::string& name, Access access) : bytes_(bytes) {
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = ::mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) fail("{}: cannot be mapped: {}", name, system_message(errno));
  data_ = static_cast<std::byte*>(mapped);
  slot_ = own_slot();
  slot_->name = printable(name);
  slot_->begin = reinterpret_cast<uintptr_t>(data_);
  slot_->end = reinterpret_cast<uintptr_t>(data_ + bytes);
}

FileMap::FileMap(FileMap&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      slot_(std::exchange(other.slot_, nullptr)) {}

FileMap& FileMap::operator=(FileMap&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(slot_, other.slot_);
  return *this;
}

FileMap::~FileMap() {
  if (data_ == nullptr) return;
  slot_->end = 0;  // first, so that the range is empty at any moment
  slot_->begin = 0;
  ::munmap(data_, bytes_);
  slot_->used = false;
}

const char* name_of_file_mapped_at(const void* address) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const Slot* slot = first_slot; slot != nullptr; slot = slot->next)
    if (slot->begin <= at && at < slot->end) return slot->name.c_str();
  return nullptr;
}

}  // namespace zoetrope
