#include "parallel/gather.h"

#include "base/error.h"
#include "parallel/layout.h"

namespace zoetrope::parallel {

AttentionProgram gather_program(const Sizes& sizes, const ContextLayout& layout, int rank) {
  const int ranks = layout.gather;
  ZT_CHECK(layout.ranks() == ranks && count_changed(layout) == 0 && sizes.key_tokens == 0);
  const IndexRange heads{0, sizes.heads}, all{0, sizes.tokens};
  AttentionProgram program;
  program.tokens = program.block = token_shard(sizes.tokens, layout, rank);
  const IndexRange own = program.tokens;
  // A rank without queries needs no keys.
  const int64_t q_bytes = segment_bytes(sizes, {0, Region::kQ, heads, own});
  const int64_t kv_of_all = own.empty() ? 0 : kv_bytes(sizes, all, sizes.heads);
  program.buffers = {q_bytes, kv_of_all, 0};
  const auto keys_at = [&](IndexRange tokens) {
    return BufferRange{1, kv_bytes(sizes, {0, tokens.begin}, sizes.heads), kv_bytes(sizes, tokens, sizes.heads)};
  };
  ChunkBuffers& chunk = program.chunks.emplace_back();
  chunk.heads = heads;
  chunk.q = chunk.own_q = {0, 0, q_bytes};
  chunk.kv = {1, 0, kv_of_all};
  chunk.o = chunk.own_o = {2, 0, 0};
  if (!own.empty()) chunk.own_kv = keys_at(own);

  // Own rank + 1 first: posted in this order, the messages of a moment go to different ranks.
  Transfer gather{Transfer::Kind::kGather, 0, 0, 0, 0};
  std::vector<Message> receives;
  for (int distance = 1; distance < ranks && !own.empty(); ++distance) {
    const int peer = (rank + distance) % ranks;
    const IndexRange tokens = token_shard(sizes.tokens, layout, peer);
    if (tokens.empty()) continue;
    program.messages.push_back({peer, Region::kKV, heads, own, keys_at(own)});
    receives.push_back({peer, Region::kKV, heads, tokens, keys_at(tokens)});
  }
  gather.sends = gather.receives = receives.size();
  program.messages.insert(program.messages.end(), receives.begin(), receives.end());
  program.transfers = {gather};

  program.folds = {{0, 0, own.empty() ? size_t{0} : size_t{1}}};
  if (!own.empty()) program.blocks = {{all, chunk.kv}};
  program.ops = {{Op::Kind::kPack}, {Op::Kind::kPost}, {Op::Kind::kWait}, {Op::Kind::kAttend}};
  if (sizes.kv_vector_bytes == 0) return program;

  // Room for all keys at once, the own ones among them; the smallest that there is for a rank without any.
  const auto wide_bytes = [&](IndexRange tokens) {
    return tokens.size() * 2 * sizes.batch * sizes.heads * sizes.vector_bytes();
  };
  program.wide = {static_cast<int>(program.buffers.size()), 0, own.empty() ? 1 : wide_bytes(all)};
  program.own_wide = {program.wide.buffer, 0, wide_bytes(own)};
  program.buffers.push_back(program.wide.bytes);
  program.ops.insert(program.ops.begin() + 1, {Op::Kind::kNarrow});
  return program;
}

}  // namespace zoetrope::parallel
