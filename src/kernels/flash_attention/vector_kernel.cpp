// Drives the tiles of an instruction set: which keys take part, packing, the division of rows over threads, states and
// outputs. Compiled for the baseline; the arithmetic is in the tiles.
//
// Keys and values are packed once per (batch, head) and read by all threads. Work goes over heads in groups: pack the
// group, then fold its query tiles. A group is one head unless tiles are too few to feed the team, so that at short
// sequences a pack is still in the second cache level when it is read. Rows are independent and keys are never split
// over threads: neither groups nor the team change a bit of the result.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "base/index_range.h"
#include "kernels/cpu_features.h"
#include "kernels/flash_attention/fixed_max.h"
#include "kernels/flash_attention/int8_attention.h"
#include "kernels/flash_attention/kernel.h"
#include "kernels/flash_attention/mask.h"
#include "kernels/flash_attention/pack.h"
#include "kernels/flash_attention/tile.h"
#include "kernels/flash_attention/tile_size.h"
#include "kernels/flash_attention/vector_kernels.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kFewTiles = 8;                   // query tiles a thread below which heads are grouped
constexpr int64_t kMinTileRows = 32;               // smaller tiles, for the team's sake, read the keys too often
constexpr int64_t kRowsAhead = 4;                  // of the output, asked for before they are written
constexpr int64_t kLine = 64;                      // bytes
constexpr int64_t kThreadWork = int64_t{1} << 20;  // multiply-adds worth waking a thread for: some 20 µs

// Which keys of the block take part for one batch entry.
struct Selection {
  int64_t count = 0;
  const int32_t* index = nullptr;  // null: the first `count`
};

bool is_int8(const TileShape& shape) { return shape.operand == DType::kI8; }

// How the rows of the heads are dealt out.
struct Division {
  int64_t group;      // heads packed at once
  int64_t tiles;      // of a head
  int64_t tile_rows;  // of a tile, the last may have fewer
  bool team;          // a group is worth waking the team for
};

class VectorKernel final : public FlashKernel {
 public:
  // `int8`: what multiplies the heads that int8 is fine enough for; null: none.
  VectorKernel(const FlashProblem& problem, const TileKernel& kernel, const TileKernel* int8 = nullptr)
      : problem_(problem),
        tile_{with_tile_sizes(kernel.shape, problem.tiles), kernel.fold},
        heads_(problem.batch * problem.heads),
        scale_log2e_(static_cast<float>(static_cast<double>(problem.scale) * kLog2E)) {
    gate_rows_ = gate_rows(tile_.shape);
    if (int8 == nullptr) return;
    // Tiles have the same rows, and rows that are gated together begin a register block in both.
    int8_ = {with_tile_sizes(int8->shape, problem.tiles), int8->fold};
    gate_rows_ = round_up(kGateRows, std::lcm(tile_.shape.query_rows, int8_.shape.query_rows));
    tile_.shape.query_tile = int8_.shape.query_tile = round_up(tile_.shape.query_tile, gate_rows_);
  }

  TileCounts accumulate(Stream& stream, RowState& state, const TensorView& q, const KeyBlock& block) const override {
    return run(stream, q, block, &state, nullptr);
  }
  TileCounts attend(Stream& stream, const TensorView& q, const KeyBlock& block, const Output& output) const override {
    return run(stream, q, block, nullptr, &output);
  }

 private:
  // What one call needs in one place.
  struct Call {
    const TensorView& q;
    const KeyBlock& block;
    RowState* state;              // where rows are kept, or
    const Output* output;         // where they are finished to
    const Selection* selections;  // [B]
    TensorView statistics;        // [B, H, 3 + D], fixed-max
    TensorView means;             // [B, H, 3 + D], of this block's keys, int8
    const bool* int8;             // [B·H]: multiplied in int8; null: none
    Division division;
    char* packs;         // [group][pack_bytes]
    int64_t pack_bytes;  // keys, then values
    int64_t value_offset;
    char* scratch;  // [team][scratch_bytes]
    int64_t scratch_bytes;
    std::atomic<int64_t>* fixed;  // groups of rows
    std::atomic<int64_t>* online;
  };

  TileCounts run(Stream& stream, const TensorView& q, const KeyBlock& block, RowState* state,
                 const Output* output) const {
    const Arena::Scope scope(stream.scratch());
    const Selection* selections = select_keys(stream.scratch(), block);
    int64_t most = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) most = std::max(most, selections[b].count);
    std::atomic<int64_t> fixed{0}, online{0};
    Call call{q, block, state, output, selections, {}, {}, nullptr, {}, nullptr, 0, 0, nullptr, 0, &fixed, &online};
    call.statistics = statistics_of(stream, problem_, block);
    TileCounts counts;
    if (problem_.int8) choose_int8(stream, call, counts);
    const auto largest = [&](auto&& bytes) {
      const int64_t of_int8 = problem_.int8 ? bytes(int8_.shape, most, problem_.head_dim) : 0;
      return round_up(std::max(bytes(tile_.shape, most, problem_.head_dim), of_int8), 64);
    };
    call.value_offset = largest(packed_keys_bytes);
    call.pack_bytes = call.value_offset + largest(packed_values_bytes);
    call.division = divide(stream.team().size(), most, call.pack_bytes);
    call.packs = allocate(stream.scratch(), call.division.group * call.pack_bytes);
    call.scratch_bytes = scratch_bytes(tile_.shape, state == nullptr);
    if (problem_.int8) call.scratch_bytes = std::max(call.scratch_bytes, scratch_bytes(int8_.shape, state == nullptr));
    call.scratch = allocate(stream.scratch(), stream.team().size() * call.scratch_bytes);
    for (int64_t first = 0; first < heads_; first += call.division.group) {
      const int64_t count = std::min(call.division.group, heads_ - first);
      pack_group(stream, call, first, count);
      fold_group(stream, call, first, count);
    }
    counts.fixed = fixed;
    counts.online = fixed_max() ? online.load() : groups_with_keys(selections);
    return counts;
  }

  // By a sample of each head that has keys.
  void choose_int8(Stream& stream, Call& call, TileCounts& counts) const {
    call.means = means_of(stream, problem_, call.block);
    auto* const errors = reinterpret_cast<double*>(allocate(stream.scratch(), heads_ * int64_t{sizeof(double)}));
    auto* const int8 = reinterpret_cast<bool*>(allocate(stream.scratch(), heads_));
    const int64_t sample_bytes = round_up(int8_sample_bytes(), 64);
    char* const samples = allocate(stream.scratch(), stream.team().size() * sample_bytes);
    stream.team().parallel_for(heads_, 1, [&](IndexRange range, int thread) {
      for (int64_t head = range.begin; head < range.end; ++head)
        errors[head] =
            int8_output_error(queries(call, head), source(call, call.block.k, head), source(call, call.block.v, head),
                              mean_of(call, head), scale_log2e_, int8_.shape.key_tile, samples + thread * sample_bytes);
    });
    Int8Heads heads(problem_);
    for (int64_t head = 0; head < heads_; ++head)
      int8[head] = call.selections[head / problem_.heads].count > 0 && heads.take(errors[head]);
    heads.store_in(counts);
    call.int8 = int8;
  }
  const TileKernel& tile_of(const Call& call, int64_t head) const {
    return call.int8 != nullptr && call.int8[head] ? int8_ : tile_;
  }

  int64_t groups_with_keys(const Selection* selections) const {
    int64_t groups = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      if (selections[b].count > 0) groups += problem_.heads * ceil_div(problem_.query_tokens, gate_rows_);
    }
    return groups;
  }

  bool fixed_max() const { return problem_.softmax == Softmax::kFixedMax; }

  static char* allocate(Arena& arena, int64_t bytes) {
    return static_cast<char*>(arena.allocate(static_cast<size_t>(bytes)));
  }

  const Selection* select_keys(Arena& arena, const KeyBlock& block) const {
    const Mask mask(problem_, block);
    const int64_t keys = block.k.extent(1);
    auto* selections = reinterpret_cast<Selection*>(allocate(arena, problem_.batch * int64_t{sizeof(Selection)}));
    for (int64_t b = 0; b < problem_.batch; ++b) {
      selections[b] = {mask.prefix(b), nullptr};
      if (selections[b].count >= 0) continue;
      auto* index = reinterpret_cast<int32_t*>(allocate(arena, keys * int64_t{sizeof(int32_t)}));
      int64_t count = 0;
      for (int64_t j = 0; j < keys; ++j) {
        if (mask.valid(b, j)) index[count++] = static_cast<int32_t>(j);
      }
      selections[b] = {count, count == keys ? nullptr : index};
    }
    return selections;
  }

  // Multiply-adds of one of the two matrix multiplications of a head.
  int64_t head_work(int64_t keys) const { return problem_.query_tokens * keys * problem_.head_dim; }

  Division divide(int64_t threads, int64_t keys, int64_t pack_bytes) const {
    const int64_t rows = problem_.query_tokens;
    int64_t tiles = ceil_div(rows, tile_.shape.query_tile), group = 1;
    if (threads > 1) {
      if (tiles < kFewTiles * threads) {
        const int64_t wanted = ceil_div(kThreadWork, std::max<int64_t>(head_work(keys), 1)) * threads;
        const int64_t affordable = std::max<int64_t>(1, kFlashPackBudget / std::max<int64_t>(pack_bytes, 1));
        group = std::min({wanted, affordable, heads_});
      }
      if (group % threads != 0) tiles = std::max(tiles, std::min(round_up(tiles, threads), rows / kMinTileRows));
    }
    // Rows that are gated together stay together, however many threads there are.
    const int64_t unit = fixed_max() ? gate_rows_ : tile_.shape.query_rows;
    const int64_t tile_rows = round_up(ceil_div(rows, tiles), unit);
    return {group, ceil_div(rows, tile_rows), tile_rows, group * head_work(keys) >= kThreadWork};
  }

  int64_t element_bytes() const { return static_cast<int64_t>(dtype_size(problem_.dtype)); }
  int64_t row_offset(const TensorView& x, int64_t b, int64_t token, int64_t h) const {
    return (b * x.stride(0) + token * x.stride(1) + h * x.stride(2)) * element_bytes();
  }

  PackSource source(const Call& call, const TensorView& x, int64_t head) const {
    const int64_t b = head / problem_.heads, h = head % problem_.heads;
    const char* data = x.data<const char>() + row_offset(x, b, 0, h);
    return {data, x.stride(1), problem_.dtype, call.selections[b].index, call.selections[b].count, problem_.head_dim};
  }

  PackSource queries(const Call& call, int64_t head) const {
    PackSource rows = source(call, call.q, head);
    rows.index = nullptr;
    rows.count = problem_.query_tokens;
    return rows;
  }

  const float* mean_of(const Call& call, int64_t head) const {
    const TensorView& means = call.means;
    return means.data<const float>() + head / problem_.heads * means.stride(0) +
           head % problem_.heads * means.stride(1) + kStatMean;
  }

  void pack_group(Stream& stream, const Call& call, int64_t first, int64_t count) const {
    int64_t tiles = 0;
    for (int64_t head = first; head < first + count; ++head) {
      tiles =
          std::max(tiles, ceil_div(call.selections[head / problem_.heads].count, tile_of(call, head).shape.key_tile));
    }
    stream.team().parallel_for(count * tiles, call.division.team ? 1 : count * tiles, [&](IndexRange range, int) {
      for (int64_t item = range.begin; item < range.end; ++item) {
        const int64_t head = first + item / tiles, tile = item % tiles;
        char* pack = call.packs + item / tiles * call.pack_bytes;
        const PackSource keys = source(call, call.block.k, head), values = source(call, call.block.v, head);
        const TileShape& shape = tile_of(call, head).shape;
        if (tile * shape.key_tile >= keys.count) continue;
        if (is_int8(shape)) {
          pack_int8_keys(shape, keys, mean_of(call, head), tile, pack);
          pack_int8_values(shape, values, tile, pack + call.value_offset);
        } else {
          pack_keys(shape, keys, tile, pack);
          pack_values(shape, values, tile, pack + call.value_offset);
        }
      }
    });
  }

  void fold_group(Stream& stream, const Call& call, int64_t first, int64_t count) const {
    std::atomic<int64_t> next{0};
    const int64_t items = count * call.division.tiles;
    auto work = [&](int thread) {
      for (int64_t item = next++; item < items; item = next++) {
        const int64_t head = item / call.division.tiles;
        fold_tile(call, first + head, call.packs + head * call.pack_bytes, item % call.division.tiles, thread);
      }
    };
    if (items == 1 || !call.division.team) {
      work(0);
    } else {
      stream.team().run(work);
    }
  }

  // ---- one tile ----

  // AMX reads whole blocks of rows, so its queries are copied.
  bool queries_in_place(const TileShape& s) const {
    return problem_.dtype == s.operand && problem_.head_dim % s.pair == 0 && s.step_unit == 1;
  }
  static int64_t weight_bytes(const TileShape& s) {
    const int64_t row = s.key_tile * 4 / s.pair + kWeightPadding;
    return s.weight_tiles * s.query_tile * row;
  }
  // Rows whose scores are kept before softmax.
  int64_t score_rows(const TileShape& s) const {
    if (is_int8(s)) return 0;
    return problem_.softmax == Softmax::kExactOnline ? s.query_tile : 1;
  }
  static int64_t panel_floats(const TileShape& s) {
    return is_int8(s) ? (2 * s.key_tile / s.panel_keys + 1) * s.query_tile : 0;
  }
  int64_t o_stride() const { return state_row_stride(problem_); }

  int64_t scratch_bytes(const TileShape& s, bool rows) const {
    int64_t bytes = weight_bytes(s) + 2 * s.query_tile * s.lanes * 4 + s.query_tile * 4 +
                    score_rows(s) * s.key_tile * 4 + panel_floats(s) * 4 + 6 * 64;
    if (fixed_max()) bytes += 2 * s.query_tile * 4 + 2 * 64;
    if (!queries_in_place(s)) bytes += s.query_tile * s.steps(problem_.head_dim) * 4 + 64;
    if (is_int8(s)) bytes += 3 * s.query_tile * 4 + 3 * 64;
    if (rows) bytes += s.query_tile * (o_stride() + 2) * 4 + 3 * 64;
    return round_up(bytes, 64);  // threads' shares stay on cache lines of their own
  }

  void fold_tile(const Call& call, int64_t head, const char* pack, int64_t tile, int thread) const {
    const TileKernel& of = tile_of(call, head);
    const TileShape& s = of.shape;
    const int64_t b = head / problem_.heads, h = head % problem_.heads;
    const int64_t begin = tile * call.division.tile_rows;
    const int64_t rows = std::min(call.division.tile_rows, problem_.query_tokens - begin);
    char* at = call.scratch + thread * call.scratch_bytes;
    const auto take = [&at](int64_t bytes) {
      char* memory = at;
      at += round_up(bytes, 64);
      return memory;
    };
    const auto take_floats = [&take](int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
    TileTask task{};
    task.scratch.weights = take(weight_bytes(s));
    task.scratch.sums = take_floats(s.query_tile * s.lanes);
    task.scratch.tile_sums = take_floats(s.query_tile * s.lanes);
    task.scratch.minus_m = take_floats(s.query_tile);
    task.scratch.scores = take_floats(score_rows(s) * s.key_tile);
    task.scratch.panels = take_floats(panel_floats(s));
    task.rows = rows;
    task.key_tile = s.key_tile;
    task.weight_rows = s.query_tile;
    task.softmax = problem_.softmax == Softmax::kExactOnline ? TileSoftmax::kExact : TileSoftmax::kLazy;
    task.head_dim = problem_.head_dim;
    task.scale_log2e = scale_log2e_;
    const PackSource q = queries(call, head);
    if (is_int8(s)) {
      task.q_stride = s.steps(problem_.head_dim) * s.pair;
      Int8Queries packed;
      packed.rows = take(s.query_tile * s.steps(problem_.head_dim) * 4);
      packed.scales = take_floats(s.query_tile);
      packed.corrections = reinterpret_cast<int32_t*>(take(s.query_tile * 4));
      packed.offsets = take_floats(s.query_tile);
      pack_int8_queries(s, q, mean_of(call, head), scale_log2e_, begin, rows, packed);
      task.q = packed.rows;
      task.q_scales = packed.scales;
      task.q_corrections = packed.corrections;
      task.q_offsets = packed.offsets;
    } else if (queries_in_place(s)) {
      task.q_stride = q.stride;
      task.q = static_cast<const char*>(q.data) + begin * q.stride * element_bytes();
    } else {
      task.q_stride = s.steps(problem_.head_dim) * s.pair;
      char* copy = take(s.query_tile * s.steps(problem_.head_dim) * 4);
      pack_rows(s, q, begin, rows, copy);
      task.q = copy;
    }
    task.keys = pack;
    task.values = pack + call.value_offset;
    task.key_count = call.selections[b].count;
    task.key_index = call.selections[b].index;
    if (problem_.bias) {
      const TensorView& bias = call.block.bias;
      task.bias = bias.data<const float>() + h * bias.stride(0) + begin * bias.stride(1);
      task.bias_stride = bias.stride(1);
    }
    task.o_stride = o_stride();
    if (call.state != nullptr) {
      const int64_t row = head * problem_.query_tokens + begin;
      task.o = call.state->o.data<float>() + row * call.state->o_stride;
      task.l = call.state->l.data<float>() + row;
      task.m = call.state->m.data<float>() + row;
      if (task.key_count > 0) fold_rows(call, of, task, b, h, begin, take_floats);
      return;
    }
    task.o = take_floats(s.query_tile * task.o_stride);
    task.l = take_floats(s.query_tile);
    task.m = take_floats(s.query_tile);
    std::fill(task.m, task.m + rows, RowState::kNoKeys);
    if (task.key_count > 0) {
      fold_rows(call, of, task, b, h, begin, take_floats);
    } else {
      std::memset(task.o, 0, static_cast<size_t>(rows * task.o_stride) * sizeof(float));
    }
    finish_tile(*call.output, task, b, begin, h);
  }

  // Folds the rows of a tile, with fixed references where that is the problem's softmax and the rows are safe with
  // them.
  template <typename Take>
  void fold_rows(const Call& call, const TileKernel& tile, TileTask& task, int64_t b, int64_t h, int64_t begin,
                 Take&& take_floats) const {
    const int64_t unit = gate_rows_, groups = ceil_div(task.rows, unit);
    if (!fixed_max()) return tile.fold(task);
    const OffsetBound bound(problem_, call.statistics, b, h);
    float* center = take_floats(tile.shape.query_tile);
    float* exponent = take_floats(tile.shape.query_tile);
    const char* q = call.q.data<const char>() + row_offset(call.q, b, begin, h);
    const auto mode_of = [&](int64_t group) {
      const int64_t first = group * unit;
      return bound.rows(q + first * call.q.stride(1) * element_bytes(), call.q.stride(1),
                        std::min(unit, task.rows - first), center + first, exponent + first);
    };
    // Neighbouring groups of one mode are folded together: the keys are read once for them.
    RowMode mode = mode_of(0);
    for (int64_t first = 0, end = 1; first < groups; first = end++) {
      RowMode next = mode;
      while (end < groups && (next = mode_of(end)) == mode) ++end;
      fold_part(tile, task, mode, first * unit, std::min(end * unit, task.rows), center, exponent);
      (mode == RowMode::kOnline ? call.online : call.fixed)->fetch_add(end - first, std::memory_order_relaxed);
      mode = next;
    }
  }

  // Rows [begin, end) of a tile.
  static void fold_part(const TileKernel& tile, const TileTask& task, RowMode mode, int64_t begin, int64_t end,
                        const float* center, const float* exponent) {
    TileTask part = task;
    part.rows = end - begin;
    part.q = static_cast<const char*>(task.q) + begin * task.q_stride * 4 / tile.shape.pair;
    if (is_int8(tile.shape)) {
      part.q_scales += begin;
      part.q_corrections += begin;
      part.q_offsets += begin;
    }
    part.o += begin * task.o_stride;
    part.l += begin;
    part.m += begin;
    if (mode != RowMode::kOnline) {
      part.softmax = mode == RowMode::kPlain ? TileSoftmax::kFixed : TileSoftmax::kFixedExponent;
      part.exponent = exponent + begin;
      for (int64_t i = 0; i < part.rows; ++i) part.scratch.minus_m[i] = -center[begin + i];
    }
    tile.fold(part);
  }

  void finish_tile(const Output& output, const TileTask& task, int64_t b, int64_t begin, int64_t h) const {
    const TensorView& o = output.o;
    with_compute_type(problem_.dtype, "o", [&](auto tag) {
      using T = typename decltype(tag)::type;
      T* out = output.row<T>(b, begin, h);
      for (int64_t r = 0; r < task.rows; ++r) {
        // Prefetched: these lines are written whole, and without it the stores would wait for them.
        const T* soon = out + std::min(r + kRowsAhead, task.rows - 1) * o.stride(1);
        for (int64_t d = 0; d < problem_.head_dim; d += kLine / int64_t{sizeof(T)}) __builtin_prefetch(soon + d, 1);
        finish_row(task.o + r * task.o_stride, task.l[r], task.m[r], out + r * o.stride(1), problem_.head_dim);
      }
    });
    for (int64_t r = 0; r < task.rows && output.log_sum_exp; ++r)
      output.write_log_sum(b, begin + r, h, task.l[r], task.m[r]);
  }

  FlashProblem problem_;
  TileKernel tile_;    // its shape with the sizes of tiles
  int64_t gate_rows_;  // whose softmax is decided together
  TileKernel int8_{};  // likewise, where the problem is int8: of the heads that int8 is fine enough for
  int64_t heads_;      // B·H
  float scale_log2e_;
};

}  // namespace

namespace {

constexpr const char* kNoInt8 = "does not multiply in int8";

Refusal int8_refusal(const FlashProblem& problem, bool available, const char* needs) {
  if (!problem.int8) return "multiplies in int8 only";
  if (std::string why = FlashAttention::int8_refusal(problem.dtype); !why.empty()) return why;
  if (!available) return needs;
  return std::nullopt;
}

// What multiplies the heads that int8 is too coarse for, as fastest() chooses.
const TileKernel& tile_for_coarse_heads() {
  const CpuFeatures& cpu = cpu_features();
  if (cpu.amx_bf16) return amx_bf16_tile();
  if (cpu.fast_bf16_dots) return avx512_bf16_tile();
  return cpu.avx512 ? avx512_tile() : avx2_tile();
}

}  // namespace

Refusal avx2_refusal(const FlashProblem& problem) {
  if (problem.int8) return kNoInt8;
  if (!cpu_features().avx2) return "needs AVX2 and FMA";
  return std::nullopt;
}

Refusal avx512_refusal(const FlashProblem& problem) {
  if (problem.int8) return kNoInt8;
  if (!cpu_features().avx512) return "needs AVX-512 (F, BW, DQ, VL)";
  return std::nullopt;
}

Refusal avx512_int8_refusal(const FlashProblem& problem) {
  return int8_refusal(problem, cpu_features().avx512_vnni, "needs AVX512-VNNI");
}
Refusal avx_vnni_int8_refusal(const FlashProblem& problem) {
  return int8_refusal(problem, cpu_features().avx_vnni, "needs AVX-VNNI");
}
Refusal avx2_int8_refusal(const FlashProblem& problem) {
  return int8_refusal(problem, cpu_features().avx2, "needs AVX2 and FMA");
}

Refusal avx512_bf16_refusal(const FlashProblem& problem) {
  if (problem.int8) return kNoInt8;
  if (problem.dtype != DType::kBF16) return fmt::format("takes BF16, not {}", dtype_name(problem.dtype));
  if (!cpu_features().avx512_bf16) return "needs AVX-512-BF16";
  return std::nullopt;
}

Refusal amx_bf16_refusal(const FlashProblem& problem) {
  if (problem.int8) return kNoInt8;
  if (problem.dtype != DType::kBF16) return fmt::format("takes BF16, not {}", dtype_name(problem.dtype));
  if (!cpu_features().amx_bf16) return "needs AMX with BF16";
  return std::nullopt;
}

std::unique_ptr<FlashKernel> make_avx2_kernel(const FlashProblem& problem) {
  return std::make_unique<VectorKernel>(problem, avx2_tile());
}
std::unique_ptr<FlashKernel> make_avx512_kernel(const FlashProblem& problem) {
  return std::make_unique<VectorKernel>(problem, avx512_tile());
}
std::unique_ptr<FlashKernel> make_avx512_bf16_kernel(const FlashProblem& problem) {
  return std::make_unique<VectorKernel>(problem, avx512_bf16_tile());
}
std::unique_ptr<FlashKernel> make_avx512_int8_kernel(const FlashProblem& problem) {
  return std::make_unique<VectorKernel>(problem, tile_for_coarse_heads(), &avx512_int8_tile());
}
std::unique_ptr<FlashKernel> make_avx_vnni_int8_kernel(const FlashProblem& problem) {
  return std::make_unique<VectorKernel>(problem, tile_for_coarse_heads(), &avx_vnni_int8_tile());
}
std::unique_ptr<FlashKernel> make_avx2_int8_kernel(const FlashProblem& problem) {
  return std::make_unique<VectorKernel>(problem, tile_for_coarse_heads(), &avx2_int8_tile());
}
std::unique_ptr<FlashKernel> make_amx_bf16_kernel(const FlashProblem& problem) {
  return std::make_unique<VectorKernel>(problem, amx_bf16_tile());
}

const TileShape* vector_shape(std::string_view implementation) {
  if (implementation == "amx_bf16") return &amx_bf16_tile().shape;
  if (implementation == "avx512_int8") return &avx512_int8_tile().shape;
  if (implementation == "avx_vnni_int8") return &avx_vnni_int8_tile().shape;
  if (implementation == "avx2_int8") return &avx2_int8_tile().shape;
  if (implementation == "avx512_bf16") return &avx512_bf16_tile().shape;
  if (implementation == "avx512") return &avx512_tile().shape;
  if (implementation == "avx2") return &avx2_tile().shape;
  return nullptr;
}

}  // namespace zoetrope::kernels
