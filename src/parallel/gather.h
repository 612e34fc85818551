// The program of a gather: queries stay where they are, and every rank gets the keys and values of all in one transfer.
//
//   Pack  Post [gather]  Wait [gather]  Attend          (and Narrow before Post, as in program.h)
//
// kv has room for all tokens: the own ones are written in place, those of each peer arrive at theirs, so that keys lie
// in the order of the sequence and one Attend folds them as a single rank would. Next to a ring, this sends the same
// bytes, pays one latency instead of R − 1, and needs no running state and no statistics; but it holds K/V of all
// tokens and hides no transfer. (Folding the own keys while the others travel is, for two ranks, the ring's program.)
#pragma once

#include "parallel/program.h"

namespace zoetrope::parallel {

// `rank` of layout.gather ranks, with all heads in one chunk. The softmax makes no difference: each rank has all keys.
AttentionProgram gather_program(const Sizes& sizes, const ContextLayout& layout, int rank);

}  // namespace zoetrope::parallel
