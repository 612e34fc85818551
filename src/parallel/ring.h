// The ring: which K/V block a rank computes at which step, and what moves meanwhile. A table per rank, drawn for R = 4.
//
// In step t a rank computes what it received in step t−1 (its own block in step 0), while the pieces listed under
// `sends` and `receives` are in flight; it waits for them before step t+1. "cI" computes block I, ">I" sends it on to
// the right, "<I" to the left.
//
//   forward     step 0   step 1   step 2   step 3      R−1 transfers, one way round
//     rank 0    c0 >0    c3 >3    c2 >2    c1
//     rank 1    c1 >1    c0 >0    c3 >3    c2
//
//   two-way     step 0     step 1              step 2            ⌈(R−1)/2⌉ transfers, both ways round at once;
//     rank 0    c0 >0 <0   c3 c1 >½3 <½1       c½2 c½2           for even R the antipodal block comes as two
//     rank 1    c1 >1 <1   c0 c2 >½0 <½2       c½3 c½3           token halves, the first from the left
//
//   open        step 0     step 1       step 2       step 3      both ways along a chain without a wrap link
//     rank 0    c0 >0      c1           c2           c3
//     rank 1    c1 >1 <1   c0 c2 >0 <2  c3 <3                    an interior rank sends R+1 blocks, an end rank 1
//     rank 2    c2 >2 <2   c1 c3 >1 <3  c0 >0
//     rank 3    c3 <3      c2           c1           c0
//
// Every rank computes every block once, what is sent is computed by its receiver, and where two pieces arrive in one
// step the left one is computed first. A block of no tokens (S < R) keeps its place in the table and moves no bytes.
// All ranks have the same number of steps; a rank of an open chain has none of its work in the last ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "zoetrope/context_layout.h"

#include "parallel/shards.h"

namespace zoetrope::parallel {

// Where a piece lies on a rank: its own block, or one of the buffers that the pieces from either side alternate in.
enum Slot : int { kOwnSlot = 0, kLeftSlot = 1, kRightSlot = 3, kSlots = 5 };

// Keys and values of some tokens of a block.
struct Piece {
  int block = 0;      // ring index of the owner
  IndexRange tokens;  // global
  int slot = kOwnSlot;
};

// A piece on its way.
struct Hop {
  int peer = 0;       // ring index of the other end
  int block = 0;      // as in Piece
  IndexRange tokens;  // global: the whole block or half of it
  int slot = 0;       // on this rank: sent from, received into (at its start)
};

// At most two, in place: in vectors the tables of a thousand ranks are millions of allocations.
template <typename T>
class UpToTwo {
 public:
  void push_back(const T& item) { items_[count_++] = item; }
  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  const T& operator[](size_t i) const { return items_[i]; }
  const T* begin() const { return items_.data(); }
  const T* end() const { return begin() + count_; }

 private:
  std::array<T, 2> items_{};
  size_t count_ = 0;
};

struct RingStep {
  UpToTwo<Piece> compute;  // in this order
  UpToTwo<Hop> sends;      // in the order to post: to the right, then to the left
  UpToTwo<Hop> receives;   // from the left, then from the right
};

// Of a ring index: step 0 and all that follow, until every rank has computed and sent everything.
std::vector<RingStep> ring_schedule(int64_t tokens, const ContextLayout& layout, int index);

// Where the softmax has fixed offsets, statistics of all keys come first: before the first block is computed, every
// rank that has keys sends one record about them to every other that has, and all combine them in ring order. Ring
// indices of those ranks, ascending. The others (S < R) have no queries either, and need nothing.
std::vector<int> statistics_ranks(int64_t tokens, const ContextLayout& layout);

// Of one record: a number n, a radius, the largest |v| and the mean key per (batch, head), float32.
int64_t statistics_bytes(const Sizes& sizes, int64_t heads);

// Bytes of the keys and values of `tokens`, for `heads` heads, as they travel.
int64_t kv_bytes(const Sizes& sizes, IndexRange tokens, int64_t heads);

}  // namespace zoetrope::parallel
