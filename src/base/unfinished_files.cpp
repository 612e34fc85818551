#include "base/unfinished_files.h"

#include <unistd.h>

#include <atomic>
#include <utility>

namespace zoetrope {

namespace {

// Only kListed and kTaken paths are read by others than their owner, and those never change.
enum class State { kFree, kOwned, kListed, kTaken };

}  // namespace

struct UnfinishedPath::Slot {
  std::atomic<State> state{State::kOwned};
  std::string path;
  Kind kind = Kind::kFile;
  Slot* next = nullptr;
};

namespace {

using Slot = UnfinishedPath::Slot;

// Slots are reused and never freed, so that a handler can walk them at any time. There are at most as many as
// unfinished files at one time: one per frame of a folder of images, else a few.
std::atomic<Slot*> first_slot = nullptr;
std::atomic<bool> removed = false;
static_assert(std::atomic<Slot*>::is_always_lock_free && std::atomic<State>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

Slot* own_slot() {
  for (Slot* slot = first_slot; slot != nullptr; slot = slot->next) {
    State expected = State::kFree;
    if (slot->state.compare_exchange_strong(expected, State::kOwned)) return slot;
  }
  auto* slot = new Slot;
  slot->next = first_slot;
  while (!first_slot.compare_exchange_weak(slot->next, slot)) {
  }
  return slot;
}

// Another thread may have taken a path but not removed it yet, so taken ones are removed too.
void remove_all(UnfinishedPath::Kind kind) noexcept {
  for (Slot* slot = first_slot; slot != nullptr; slot = slot->next) {
    State state = State::kListed;
    if (!slot->state.compare_exchange_strong(state, State::kTaken) && state != State::kTaken) continue;
    if (slot->kind != kind) continue;
    if (kind == UnfinishedPath::Kind::kFile) ::unlink(slot->path.c_str());
    else ::rmdir(slot->path.c_str());
  }
}

}  // namespace

void remove_unfinished_files() noexcept {
  removed = true;
  remove_all(UnfinishedPath::Kind::kFile);
  // Twice, because one may be inside another and the list has no order.
  remove_all(UnfinishedPath::Kind::kFolder);
  remove_all(UnfinishedPath::Kind::kFolder);
}

bool unfinished_files_removed() noexcept { return removed; }

UnfinishedPath::UnfinishedPath(const std::string& path, Kind kind) : slot_(own_slot()) {
  slot_->path = path;
  slot_->kind = kind;
  slot_->state = State::kListed;
}

UnfinishedPath::UnfinishedPath(UnfinishedPath&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}

UnfinishedPath& UnfinishedPath::operator=(UnfinishedPath&& other) noexcept {
  if (this != &other) {
    forget();
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

void UnfinishedPath::forget() noexcept {
  if (slot_ == nullptr) return;
  State expected = State::kListed;
  slot_->state.compare_exchange_strong(expected, State::kFree);  // a taken slot stays as it is: the process is ending
  slot_ = nullptr;
}

}  // namespace zoetrope
