#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "cli/attention.h"
#include "parallel/shards.h"

namespace zoetrope::cli {
namespace {

// ---- files ----

class Reader {
 public:
  Reader(bench::AttentionData& data, const AttentionOptions& options) : data_(data), options_(options) {}

  void read() {
    data_.file = io::TensorFile::open(options_.input);
    data_.q = operand("q");
    data_.k = operand("k");
    data_.v = operand("v");
    check_shapes();
    check_options();
    const bool lengths = data_.file->contains("key_lengths"), mask = data_.file->contains("key_mask");
    if (lengths && mask) {
      fail("{}: holds both key_lengths and key_mask; leave one of them out", options_.input);
    }
    if (lengths) read_key_lengths();
    if (mask) read_key_mask();
  }

 private:
  const io::TensorInfo& info(const char* name) const { return data_.file->info(name); }

  // The mapped tensor, or a copy if it is not aligned.
  TensorView elements(const char* name) {
    const TensorView mapped = data_.file->tensor(name);
    if (info(name).aligned) return mapped;
    Tensor copy = Tensor::uninitialized(mapped.dtype(), mapped.shape());
    std::memcpy(copy.data<char>(), mapped.raw(), mapped.bytes());
    return data_.owned.emplace_back(std::move(copy)).view();
  }

  TensorView operand(const char* name) {
    if (!data_.file->contains(name)) {
      fail("{}: tensor '{}' is missing; the file must hold q, k and v", options_.input, name);
    }
    const io::TensorInfo& i = info(name);
    const std::string extents = extents_text(i);
    if (i.extents.size() != 4) {
      fail("{}: tensor '{}' is {}, but must have four axes: batch, tokens, heads, head_dim", options_.input, name,
           extents);
    }
    for (const int64_t extent : i.extents) {
      if (extent < 1) {
        fail("{}: tensor '{}' is {}; every extent must be at least 1", options_.input, name, extents);
      }
    }
    if (i.dtype != DType::kF32 && i.dtype != DType::kBF16) {
      fail("{}: tensor '{}' has dtype {}, but must be F32 or BF16", options_.input, name, i.dtype_name);
    }
    if (i.dtype != info("q").dtype) {
      fail("{}: tensor '{}' has dtype {}, but 'q' has {}; q, k and v must have the same", options_.input, name,
           i.dtype_name, info("q").dtype_name);
    }
    return elements(name);
  }

  static std::string extents_text(const io::TensorInfo& i) { return fmt::format("[{}]", fmt::join(i.extents, ", ")); }

  void check_shapes() const {
    const Shape &q = data_.q.shape(), &k = data_.k.shape(), &v = data_.v.shape();
    for (const int axis : {0, 2, 3}) {
      if (k[axis] == q[axis]) continue;
      fail("{}: tensor 'k' is {}, but 'q' is {}; batch, heads and head_dim must agree", options_.input, k.to_string(),
           q.to_string());
    }
    if (!(v == k)) {
      fail("{}: tensor 'v' is {}, but 'k' is {}; they must have the same shape", options_.input, v.to_string(),
           k.to_string());
    }
  }

  // Keys for random data are allowed if they agree with the file.
  void check_options() const {
    const char* dtype = data_.q.dtype() == DType::kF32 ? "float32" : "bf16";
    if (!options_.dtype.empty() && options_.dtype != dtype) {
      fail("dtype={}: the tensors of {} are {}; leave dtype out", options_.dtype, options_.input, dtype);
    }
    if (options_.kv && *options_.kv != data_.key_tokens()) {
      fail("kv={}: tensor 'k' of {} is {}; leave kv out", *options_.kv, options_.input, data_.k.shape().to_string());
    }
  }

  void check_mask_shape(const char* name, const std::vector<int64_t>& expected, const char* axes) const {
    if (info(name).extents == expected) return;
    fail("{}: tensor '{}' is {}, but must be [{}] ({}) for k {}", options_.input, name, extents_text(info(name)),
         fmt::join(expected, ", "), axes, data_.k.shape().to_string());
  }

  void read_key_lengths() {
    const io::TensorInfo& i = info("key_lengths");
    if (i.dtype != DType::kI64) {
      fail("{}: tensor 'key_lengths' has dtype {}, but must be I64", options_.input, i.dtype_name);
    }
    check_mask_shape("key_lengths", {data_.q.extent(0)}, "batch");
    const TensorView lengths = elements("key_lengths");
    data_.key_lengths.assign(lengths.data<int64_t>(), lengths.data<int64_t>() + lengths.size());
    for (size_t b = 0; b < data_.key_lengths.size(); ++b) {
      const int64_t length = data_.key_lengths[b];
      if (length >= 0 && length <= data_.key_tokens()) continue;
      fail("{}: key_lengths[{}] is {}, but there are {} keys; 0 to {} is possible", options_.input, b, length,
           data_.key_tokens(), data_.key_tokens());
    }
  }

  void read_key_mask() {
    const io::TensorInfo& i = info("key_mask");
    if (i.dtype != DType::kBool && i.dtype != DType::kU8) {
      fail("{}: tensor 'key_mask' has dtype {}, but must be BOOL or U8", options_.input, i.dtype_name);
    }
    check_mask_shape("key_mask", {data_.q.extent(0), data_.key_tokens()}, "batch, keys");
    data_.key_mask = elements("key_mask");
  }

  bench::AttentionData& data_;
  const AttentionOptions& options_;
};

// ---- random data ----

// Refuses data that do not fit, before the system kills the process. A process uses the tokens of its ranks, all keys
// of cross-attention, and all of o, or of everything, where it writes or compares the result.
void check_memory(const Shape& queries, const Shape& keys, DType dtype, const AttentionOptions& options,
                  const ProcessPart& part) {
  const bool compares = part.rank == 0 && options.reference, writes = part.rank == 0 && !options.output.empty();
  parallel::ContextLayout shards{.ring = part.ranks};
  // Another number of weights is refused with the strategy.
  const std::vector<int>& weights = options.strategy.shard_weights.fixed;
  if (weights.size() == static_cast<size_t>(part.ranks)) shards.shard_weights = weights;
  const auto own = static_cast<double>(parallel::token_shard(queries[1], shards, part.rank).size());
  const auto all_queries = static_cast<double>(queries[1]), all_keys = static_cast<double>(keys[1]);
  const double q = compares ? all_queries : own;
  const double o = compares || writes ? all_queries : own;
  const double k = compares || keys[1] != queries[1] ? all_keys : own;
  const auto row = static_cast<double>(queries[0] * queries[2] * queries[3]) * static_cast<double>(dtype_size(dtype));
  const double bytes = row * (q + 2 * k + o);
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes <= memory) return;
  fail("shape={}, kv={}: {}q, k, v and o take {:.1f} GB, but this machine has {:.1f}", queries.to_string(), keys[1],
       part.ranks == 1 ? "" : fmt::format("the tokens of rank {} in ", part.rank), bytes * 1e-9, memory * 1e-9);
}

void allocate(bench::AttentionData& data, const AttentionOptions& options, const ProcessPart& part) {
  const Shape queries = parse_shape(options.shape);
  Shape keys = queries;
  keys[1] = options.kv.value_or(queries[1]);
  if (keys[1] != queries[1]) {
    parse_shape(fmt::format("{}x{}x{}x{}", keys[0], keys[1], keys[2], keys[3]));  // refuses what overflows
  }
  const DType dtype = options.dtype == "float32" ? DType::kF32 : DType::kBF16;
  check_memory(queries, keys, dtype, options, part);
  // Uninitialized, so that the pages of other processes' tokens are never allocated.
  for (const Shape& shape : {queries, keys, keys}) data.owned.push_back(Tensor::uninitialized(dtype, shape));
  data.q = data.owned[0].view();
  data.k = data.owned[1].view();
  data.v = data.owned[2].view();
  if (!options.key_lengths.empty()) {
    data.key_lengths = parse_key_lengths(options.key_lengths, queries[0], keys[1]);
  }
}

}  // namespace

std::string fingerprint(const bench::AttentionData& data) {
  std::string text;
  for (const auto& [name, x] : {std::pair{"q", data.q}, {"k", data.k}, {"v", data.v}}) {
    text += fmt::format("{}={} {}\n", name, dtype_name(x.dtype()), x.shape().to_string());
    if (!data.file) continue;
    // Different files under one name: nearly always their first or last bytes differ.
    constexpr size_t kSample = 4096;
    const std::string_view bytes(x.data<const char>(), x.bytes());
    const std::string_view last = bytes.substr(bytes.size() - std::min(bytes.size(), kSample));
    text += fmt::format("{} (hash of both ends)={:016x}\n", name, fnv1a64(last, fnv1a64(bytes.substr(0, kSample))));
  }
  text += fmt::format("key_lengths=[{}]\n", fmt::join(data.key_lengths, ", "));
  const std::string_view mask(data.key_mask ? data.key_mask.data<const char>() : "",
                              data.key_mask ? data.key_mask.bytes() : 0);
  return text + fmt::format("key_mask (hash)={:016x}\n", fnv1a64(mask));
}

bench::AttentionData open_attention_data(const AttentionOptions& options, const ProcessPart& part) {
  bench::AttentionData data;
  if (options.input.empty()) {
    allocate(data, options, part);
  } else {
    Reader(data, options).read();
  }
  return data;
}

void fill_random(const bench::AttentionData& data, int64_t seed, IndexRange queries, IndexRange keys,
                 ThreadTeam& team) {
  uint64_t place = static_cast<uint64_t>(seed);
  for (const TensorView* x : {&data.q, &data.k, &data.v}) {
    place += kSplitMixStep;
    bench::fill_normal(*x, x == &data.q ? queries : keys, split_mix(place), team);
  }
}

}  // namespace zoetrope::cli
