#include "python/bindings/transport.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"

namespace zoetrope::python {
namespace {

namespace nb = nanobind;

// A tag names a message of a pair of ranks: its group and its number there. Gloo has 32 bits for it.
constexpr int kNumberBits = 20;
constexpr int kMostSplits = 15;    // of a group
constexpr int kMostGroups = 1024;  // ids that are given

nb::object bytes_of(void* data, size_t size) {
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(data, {size}, nb::none()), nb::rv_policy::reference);
}

class PythonCommunicator final : public comm::Communicator {
 public:
  // `members`: ranks of the whole. `id` is the same on all of them, and no other group of two of them has it.
  PythonCommunicator(const nb::object& transport, std::vector<int> members, int rank, int id)
      : transport_(transport), members_(std::move(members)), rank_(rank), id_(id) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const override { return members_[static_cast<size_t>(rank)]; }
  int ranks_in_this_process() const override { return 1; }

  comm::Work exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives,
                      const char* operation) override {
    auto posted = std::make_unique<Posted>(*this, operation);
    const nb::gil_scoped_acquire interpreter;
    for (const comm::Segment& piece : sends) {
      if (piece.peer == rank_) {
        own_.emplace_back(static_cast<const char*>(piece.data), static_cast<const char*>(piece.data) + piece.bytes);
        continue;
      }
      const int tag = next_tag(sent_[piece.peer]);
      counters_.bytes_sent += static_cast<int64_t>(piece.bytes);
      if (piece.bytes > 0) posted->works.push_back(post("send", piece, tag));
    }
    for (const comm::Segment& piece : receives) {
      if (piece.peer == rank_) {
        take_own(piece, operation);
        continue;
      }
      const int tag = next_tag(received_[piece.peer]);
      counters_.bytes_received += static_cast<int64_t>(piece.bytes);
      if (piece.bytes > 0) posted->works.push_back(post("receive", piece, tag));
    }
    return comm::Work(std::move(posted));
  }

  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    struct Wish {
      int color, key;
    } const mine{color, key};
    std::vector<Wish> all(members_.size());
    all_gather(&mine, all.data(), sizeof mine, "split");
    std::vector<int> ranks;
    for (int i = 0; i < size(); ++i)
      if (all[static_cast<size_t>(i)].color == color) ranks.push_back(i);
    const auto key_of = [&](int r) { return all[static_cast<size_t>(r)].key; };
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return key_of(a) < key_of(b); });
    std::vector<int> members;
    for (const int r : ranks) members.push_back(world_rank(r));
    const auto own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    const int id = id_ * (kMostSplits + 1) + ++splits_;
    ZT_CHECK(splits_ <= kMostSplits && id < kMostGroups, "group {} of {}", splits_, id_);
    return std::make_unique<PythonCommunicator>(transport_, std::move(members), static_cast<int>(own), id);
  }

  comm::Counters counters() const override { return counters_; }
  void reset_counters() override { counters_ = {}; }
  void set_step(std::string) override {}
  void set_trace(trace::Trace*) override {}

 private:
  struct Posted final : comm::Work::Operation {
    Posted(PythonCommunicator& from, const char* name) : owner(from), operation(name) {}
    ~Posted() override {
      const nb::gil_scoped_acquire interpreter;
      works.clear();
    }
    void wait() override {
      const nb::gil_scoped_acquire interpreter;
      for (const nb::object& work : works) owner.transport_.attr("wait")(work, operation);
    }
    PythonCommunicator& owner;
    const char* operation;
    std::vector<nb::object> works;
  };

  int next_tag(int& number) const { return id_ << kNumberBits | (number++ & ((1 << kNumberBits) - 1)); }

  nb::object post(const char* method, const comm::Segment& piece, int tag) {
    return transport_.attr(method)(world_rank(piece.peer), tag, bytes_of(piece.data, piece.bytes));
  }

  // What this rank sent to itself before, in order.
  void take_own(const comm::Segment& piece, const char* operation) {
    if (own_.empty() || own_.front().size() != piece.bytes)
      fail("{}: rank {} waits for {} bytes from itself that it did not send", operation, world_rank(rank_),
           piece.bytes);
    std::copy(own_.front().begin(), own_.front().end(), static_cast<char*>(piece.data));
    own_.erase(own_.begin());
  }

  const nb::object& transport_;
  const std::vector<int> members_;
  const int rank_, id_;
  int splits_ = 0;
  std::map<int, int> sent_, received_;  // messages by peer
  std::vector<std::vector<char>> own_;
  comm::Counters counters_;
};

}  // namespace

std::unique_ptr<comm::Communicator> make_communicator(const nb::object& transport, int rank, int size) {
  std::vector<int> members(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) members[static_cast<size_t>(i)] = i;
  return std::make_unique<PythonCommunicator>(transport, std::move(members), rank, 0);
}

}  // namespace zoetrope::python
