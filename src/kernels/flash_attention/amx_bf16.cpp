// The bf16 tile with AMX: both matrix multiplications by tdpbf16ps, 16 × 16 sums of 32 terms per instruction, softmax
// by AVX-512. Everything else is VectorTile's: states, weights, the check of lazy softmax, rows that are redone.
//
// AMX takes 8 cycles for both multiplications of one vector of sixteen scores at D = 128, and its softmax takes
// 5.5 by itself. Everything is therefore one stream of blocks of 32 rows: scores of a block with 64 keys, then values
// of the key tile before this one, and between their steps a few rows at a time of the softmax of the block before. A
// tile load takes 8.6 cycles and a store 17, and vector instructions hardly issue next to loads. Tried and no faster:
// stores two at a time next to the next block's products, sums started from zeros, key tiles not two deep, software
// prefetch. Threads that take eight query tiles through 4 MB of keys before going on are 2 to 4 % faster where ranks of
// one thread have heads of their own, and up to 3.5 % slower where a team shares a head.
//
// Keys are packed as for vectors: sixteen pair rows of a panel are a tile of the second operand, 16 keys wide. Sums
// start from o in memory: a chain over all keys costs a digit of float32, far less than the rounding of a weight.
#include <algorithm>

#include "kernels/amx_tiles.h"
#include "kernels/flash_attention/avx512_bf16_vectors.h"

namespace zoetrope::kernels {
namespace {

struct AmxVectors : Avx512Bf16 {
  static constexpr int kStepUnit = 16;  // pairs that an instruction multiplies
};

// Multiplications with nothing in between.
struct Nothing {
  ZT_FLASH_INLINE void some() {}
};

class AmxTile : public VectorTile<AmxVectors> {
  using Base = VectorTile<AmxVectors>;
  using Element = uint16_t;
  using Vec = __m512;
  static constexpr int64_t kTile = kAmxTileRows;    // rows, or columns of 32 bits, of a tile
  static constexpr int64_t kLine = kAmxTileLine;    // bytes
  static constexpr int64_t kBlockRows = 2 * kTile;  // that are multiplied together
  static constexpr int64_t kPairStep = 2 * kTile;   // terms of one instruction
  static constexpr int kPanelKeys = 64;
  static constexpr int kKeyVectors = AmxVectors::kKeyVectors;

 public:
  static constexpr TileShape kShape = {DType::kBF16, 16, 2, kPanelKeys, 2, kBlockRows, AmxVectors::kStepUnit, 2};

  static void fold(const TileTask& task) {
    AmxTile tile(task);
    const AmxTiles tiles;
    run_tile(tile, task);
  }

  template <TileSoftmax kSoftmax, bool kBias>
  void run() {
    if constexpr (kSoftmax == TileSoftmax::kExact) {
      run_exactly<kBias>();
    } else {
      run_in_a_stream<kSoftmax, kBias>();
    }
  }

 private:
  explicit AmxTile(const TileTask& task)
      : Base(task),
        row_blocks_((task.rows + kBlockRows - 1) / kBlockRows),
        buffer_elements_(task.weight_rows * weight_stride_) {}

  // ---- softmax between the multiplications ----

  // The softmax of one block of scores, rows at a time.
  template <TileSoftmax kSoftmax, bool kBias>
  class Softmax {
   public:
    Softmax(const AmxTile& tile, int64_t calls) : tile_(tile), each_((kBlockRows + calls - 1) / calls) {}

    // Rows [row0, row0 + 32) with the panel of `valid` keys that is `panel` keys into the tile that begins at `first`.
    void begin(const float* scores, int64_t row0, int64_t first, int64_t panel, int64_t valid) {
      scores_ = scores;
      row_ = row0;
      end_ = std::min(row0 + kBlockRows, tile_.t_.rows);
      key_ = first + panel;
      valid_ = valid;
      out_ = tile_.weights(0) + panel;
      reference_ = !kReferencesGiven<kSoftmax> && tile_.fresh_ && panel == 0;
      plain_ = !reference_ && valid >= kPanelKeys;
    }
    ZT_FLASH_INLINE void some() {
      const int64_t end = std::min(row_ + each_, end_);
      if (plain_) [[likely]] {
        for (; row_ < end; ++row_, scores_ += kPanelKeys) weigh_row<false>();
      } else {
        special(end);
      }
    }
    void finish() {
      if (plain_) {
        for (; row_ < end_; ++row_, scores_ += kPanelKeys) weigh_row<false>();
      } else {
        special(end_);
      }
    }

   private:
    template <bool kTail>
    ZT_FLASH_INLINE void weigh_row() {
      Vec score[kKeyVectors];
      load(score);
      tile_.template weigh_row<kSoftmax, kBias, kTail>(score, AmxVectors::set1(tile_.t_.scale_log2e), row_, key_,
                                                       valid_, out_);
    }
    ZT_FLASH_INLINE void load(Vec (&score)[kKeyVectors]) const {
#pragma GCC unroll 4
      for (int v = 0; v < kKeyVectors; ++v) score[v] = AmxVectors::load(scores_ + v * AmxVectors::kLanes);
    }
    // The first panel of rows sets their reference; the last may have fewer keys.
    __attribute__((noinline)) void special(int64_t end) {
      for (; row_ < end; ++row_, scores_ += kPanelKeys) {
        if (reference_) {
          Vec score[kKeyVectors];
          load(score);
          const Vec scale = AmxVectors::set1(tile_.t_.scale_log2e);
          const float top = tile_.template panel_maximum<kBias, true>(score, scale, row_, key_, valid_);
          tile_.t_.scratch.minus_m[row_] = -valid_reference(top);
        }
        weigh_row<true>();
      }
    }

    const AmxTile& tile_;
    const int64_t each_;  // rows at a time
    const float* scores_ = nullptr;
    int64_t row_ = 0, end_ = 0, key_ = 0, valid_ = 0;
    Element* out_ = nullptr;
    bool reference_ = false, plain_ = true;
  };

  // ---- matrix multiplications ----

  // GCC 12 treats loads of tiles as arithmetic on addresses: the stores of vectors must be in memory before them.
  static ZT_FLASH_INLINE void stored() { asm volatile("" : : : "memory"); }

  // Scores of 32 rows with a panel of keys.
  template <typename Interleaved>
  ZT_FLASH_INLINE void score_block(int64_t row0, int64_t key, float* scores, int64_t stride,
                                   Interleaved& interleaved) const {
    const Element* q = static_cast<const Element*>(t_.q) + row0 * t_.q_stride;
    const int64_t q_line = t_.q_stride * int64_t{sizeof(Element)}, line = stride * int64_t{sizeof(float)};
    constexpr int64_t kKeyLine = kPanelKeys * 2 * int64_t{sizeof(Element)};
    stored();
    for (int64_t half = 0; half < kPanelKeys; half += 2 * kTile) {
      const Element* k = key_panel(key) + half * 2;
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t step = 0; step < steps_; step += kTile) {
        _tile_loadd(4, q + step * 2, q_line);
        _tile_loadd(6, k, kKeyLine);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, k + kTile * 2, kKeyLine);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, q + step * 2 + kTile * t_.q_stride, q_line);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        k += kTile * kPanelKeys * 2;
        interleaved.some();
      }
      _tile_stored(0, scores + half, line);
      _tile_stored(1, scores + half + kTile, line);
      _tile_stored(2, scores + half + kTile * stride, line);
      _tile_stored(3, scores + half + kTile * stride + kTile, line);
    }
  }

  // o of 32 rows and kWidth times sixteen head dims: weights of a key tile times its values.
  template <int kWidth, typename Interleaved>
  ZT_FLASH_INLINE void value_tiles(const Element* p, const Element* v, int64_t keys, float* o, int64_t stride,
                                   bool fresh, Interleaved& interleaved) const {
    const int64_t line = stride * int64_t{sizeof(float)}, p_line = weight_stride_ * int64_t{sizeof(Element)};
    constexpr int64_t kValueLine = kWidth * kLine;
    stored();
    if (fresh) {
      _tile_zero(0);
      _tile_zero(2);
      if constexpr (kWidth == 2) {
        _tile_zero(1);
        _tile_zero(3);
      }
    } else {
      _tile_loadd(0, o, line);
      _tile_loadd(2, o + kTile * stride, line);
      if constexpr (kWidth == 2) {
        _tile_loadd(1, o + kTile, line);
        _tile_loadd(3, o + kTile * stride + kTile, line);
      }
    }
    for (int64_t key = 0; key < keys; key += kPairStep) {
      _tile_loadd(4, p + key, p_line);
      _tile_loadd(6, v, kValueLine);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kWidth == 2) {
        _tile_loadd(7, v + kTile * 2, kValueLine);
        _tile_dpbf16ps(1, 4, 7);
      }
      _tile_loadd(5, p + key + kTile * weight_stride_, p_line);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kWidth == 2) _tile_dpbf16ps(3, 5, 7);
      v += kWidth * kTile * kTile * 2;
      interleaved.some();
    }
    _tile_stored(0, o, line);
    _tile_stored(2, o + kTile * stride, line);
    if constexpr (kWidth == 2) {
      _tile_stored(1, o + kTile, line);
      _tile_stored(3, o + kTile * stride + kTile, line);
    }
  }

  // Weights and values of one key tile, in the order in which their blocks are computed.
  struct Values {
    const Element* weights = nullptr;
    const Element* values = nullptr;
    int64_t keys = 0, packed_keys = 0;
    bool fresh = false;  // o holds nothing yet
    int64_t panel = 0, block = 0;
  };

  template <typename Interleaved>
  ZT_FLASH_INLINE void value_block(Values& now, Interleaved& interleaved) const {
    const ValuePanels panels(t_.head_dim, kShape);
    const int64_t vector = panels.first_vector(now.panel), width = panels.width_vectors(now.panel);
    const int64_t row0 = now.block * kBlockRows;
    const Element* p = now.weights + row0 * weight_stride_;
    const Element* v = now.values + vector * kTile * now.packed_keys;
    float* o = t_.o + row0 * t_.o_stride + vector * kTile;
    if (row0 + kBlockRows <= t_.rows) {
      if (width == 2) {
        value_tiles<2>(p, v, now.keys, o, t_.o_stride, now.fresh, interleaved);
      } else {
        value_tiles<1>(p, v, now.keys, o, t_.o_stride, now.fresh, interleaved);
      }
    } else {
      last_value_block(now, p, v, o, width, interleaved);
    }
    if (++now.block == row_blocks_) {
      now.block = 0;
      ++now.panel;
    }
  }

  // Rows beyond the task's belong to other threads.
  template <typename Interleaved>
  __attribute__((noinline)) void last_value_block(const Values& now, const Element* p, const Element* v, float* o,
                                                  int64_t width, Interleaved& interleaved) const {
    alignas(64) float copy[kBlockRows * 2 * kTile] = {};
    const int64_t stride = width * kTile, rows = t_.rows % kBlockRows;
    for (int64_t r = 0; r < rows && !now.fresh; ++r) std::copy_n(o + r * t_.o_stride, stride, copy + r * stride);
    if (width == 2) {
      value_tiles<2>(p, v, now.keys, copy, stride, false, interleaved);
    } else {
      value_tiles<1>(p, v, now.keys, copy, stride, false, interleaved);
    }
    for (int64_t r = 0; r < rows; ++r) std::copy_n(copy + r * stride, stride, o + r * t_.o_stride);
  }

  // ---- a query tile ----

  int64_t value_blocks() const { return ValuePanels(t_.head_dim, kShape).count * row_blocks_; }

  Values values_of(int64_t first, int64_t keys, const Element* weights, bool fresh) const {
    Values values;
    values.weights = weights;
    values.values = value_tile(first);
    values.keys = keys;
    values.packed_keys = (keys + kPanelKeys - 1) / kPanelKeys * kPanelKeys;
    values.fresh = fresh;
    return values;
  }

  // Key tiles are two deep: scores of one are computed between the values of the one before.
  template <TileSoftmax kSoftmax, bool kBias>
  void run_in_a_stream() {
    load_state<kSoftmax>();
    bool fresh = fresh_;
    Values before;
    int64_t left = 0;  // value blocks of the key tile before
    for (int64_t first = 0; first < t_.key_count; first += key_tile_) {
      const int64_t keys = std::min(t_.key_count - first, key_tile_);
      weights_ = static_cast<Element*>(t_.scratch.weights) + first / key_tile_ % 2 * buffer_elements_;
      score_tile<kSoftmax, kBias>(first, keys, before, left);
      check_tile<kSoftmax, kBias>(first, keys);
      fresh_ = false;
      before = values_of(first, keys, weights_, fresh);
      left = value_blocks();
      fresh = false;
    }
    Nothing nothing;
    for (; left > 0; --left) value_block(before, nothing);
    store_state<kSoftmax>();
  }

  template <TileSoftmax kSoftmax, bool kBias>
  void score_tile(int64_t first, int64_t keys, Values& before, int64_t left) const {
    alignas(64) float scores[2][kBlockRows * kPanelKeys];
    const int64_t blocks = row_blocks_ * ((keys + kPanelKeys - 1) / kPanelKeys);
    // Steps of four multiplications each.
    const int64_t steps = steps_ / kTile * 2 + (left * (before.keys + kPairStep - 1) / kPairStep) / blocks;
    Softmax<kSoftmax, kBias> softmax(*this, steps);
    int64_t block = 0, values_done = 0;
    for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
      for (int64_t row0 = 0; row0 < t_.rows; row0 += kBlockRows, ++block) {
        float* now = scores[block % 2];
        score_block(row0, first + panel, now, kPanelKeys, softmax);
        for (; values_done * blocks < block * left; ++values_done) value_block(before, softmax);
        softmax.finish();
        softmax.begin(now, row0, first, panel, keys - panel);
      }
    }
    for (; values_done < left; ++values_done) value_block(before, softmax);
    softmax.finish();
    stored();
  }

  // Exact online softmax, not interleaved, for comparison.
  template <bool kBias>
  void run_exactly() {
    load_state<TileSoftmax::kExact>();
    Nothing nothing;
    for (int64_t first = 0; first < t_.key_count; first += key_tile_) {
      const int64_t keys = std::min(t_.key_count - first, key_tile_);
      for (int64_t panel = 0; panel < keys; panel += kPanelKeys) {
        for (int64_t row0 = 0; row0 < t_.rows; row0 += kBlockRows) {
          score_block(row0, first + panel, t_.scratch.scores + row0 * key_tile_ + panel, key_tile_, nothing);
        }
      }
      raise_rows<kBias>(first, keys);
      Values values = values_of(first, keys, weights_, fresh_);
      for (int64_t i = value_blocks(); i > 0; --i) value_block(values, nothing);
      fresh_ = false;
    }
    store_state<TileSoftmax::kExact>();
  }

  const int64_t row_blocks_;
  const int64_t buffer_elements_;  // of the weights of one key tile
};

constexpr TileKernel kTileKernel = {AmxTile::kShape, AmxTile::fold};

}  // namespace

const TileKernel& amx_bf16_tile() { return kTileKernel; }

}  // namespace zoetrope::kernels
