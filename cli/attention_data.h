// What `zoetrope attention` attends over: q, k, v and what masks them, from a file or from a seed. Whole tensors, of
// which a rank touches its own tokens only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/index_range.h"
#include "zoetrope/tensor.h"

#include "cli/attention_options.h"
#include "device/thread_team.h"
#include "io/safetensors.h"

namespace zoetrope::cli {

struct AttentionData {
  TensorView q;     // [B, Sq, H, D]
  TensorView k, v;  // [B, Skv, H, D]
  std::vector<int64_t> key_lengths;
  TensorView key_mask;  // [B, Skv] U8 or BOOL
  bool random = false;  // allocated, but not filled: see fill_random()

  std::shared_ptr<const io::SafetensorsFile> file;
  std::vector<Tensor> owned;

  int64_t query_tokens() const { return q.extent(1); }
  int64_t key_tokens() const { return k.extent(1); }
  bool cross() const { return key_tokens() != query_tokens(); }  // then keys are replicated, not sharded
  attention::MaskKind mask_kind() const;
  attention::Mask mask() const { return {key_lengths, key_mask}; }
  int64_t valid_keys() const;  // summed over the batch
  // A line a fact, as key=value: ranks that read other data are told so by the comparison of these.
  std::string fingerprint() const;
};

// What this process does of the whole: the tokens of one rank, or of all where the ranks are its threads.
struct ProcessPart {
  int rank = 0, ranks = 1;
};

// Throws Error for what is missing, and for shapes, dtypes and masks that do not fit, naming file and tensor.
AttentionData open_attention_data(const AttentionOptions& options, const ProcessPart& part = {});

// Standard normal numbers, each a function of the seed, the tensor and its place in it alone: any thread and any rank
// may make any part.
struct RandomPart {
  IndexRange queries;  // tokens of q
  IndexRange keys;     // tokens of k and v
};
void fill_random(const AttentionData& data, int64_t seed, const RandomPart& part, ThreadTeam& team);

}  // namespace zoetrope::cli
