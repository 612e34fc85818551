#include "io/weights/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "io/weights/in_parts.h"
#include "io/weights/quantised_tensor.h"
#include "io/weights/weight_cache.h"
#include "io/weights/weight_shards.h"
#include "io/weights/weights_memory.h"
#include "tensor/dispatch.h"

namespace zoetrope::io {

namespace {

// memcpy because stored data may lie at any address; it compiles to plain vector loads.
template <typename From, typename To>
void convert(const void* from, To* to, int64_t count, int threads) {
  const auto* source = static_cast<const std::byte*>(from);
  in_parts(count, threads, [&](IndexRange range) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      From value;
      std::memcpy(&value, source + static_cast<size_t>(i) * sizeof(From), sizeof(From));
      to[i] = from_float<To>(to_float(value));  // a double is rounded to float first, as PyTorch does
    }
  });
}

void copy_bytes(const TensorView& from, const TensorView& to, int threads) {
  in_parts(static_cast<int64_t>(to.bytes()), threads, [&](IndexRange range) {
    std::memcpy(static_cast<std::byte*>(to.raw()) + range.begin,
                static_cast<const std::byte*>(from.raw()) + range.begin, static_cast<size_t>(range.size()));
  });
}

template <typename To>
void convert_stored(const TensorView& stored, const TensorView& out, const std::string& label, int threads) {
  with_stored_type(stored.dtype(), label, [&](auto tag) {
    convert<typename decltype(tag)::type>(stored.raw(), out.data<To>(), out.size(), threads);
  });
}

std::string label(const WeightSource& source, const std::string& name) {
  return fmt::format("{}: tensor '{}'", source.where(name), name);
}

// Elements `range` of a quantised tensor. Those of BF16 are rounded once, from float32.
void read_quantised(const QuantisedTensor& tensor, IndexRange range, const TensorView& out) {
  if (out.dtype() == DType::kF32) return tensor.read(range, out.data<float>());
  ZT_CHECK(out.dtype() == DType::kBF16, "{}", dtype_name(out.dtype()));
  constexpr int64_t kPiece = 4096;  // a multiple of all blocks
  float piece[kPiece];
  auto* to = out.data<BFloat16>();
  for (int64_t begin = range.begin; begin < range.end; begin += kPiece) {
    const int64_t count = std::min(kPiece, range.end - begin);
    tensor.read({begin, begin + count}, piece);
    for (int64_t i = 0; i < count; ++i) *to++ = to_bfloat16(piece[i]);
  }
}

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(Checkpoint checkpoint, int threads)
      : checkpoint_(std::move(checkpoint)), quantised_(quantised_tensors(checkpoint_)), threads_(threads) {}

  bool contains(const std::string& name) const override {
    return checkpoint_.contains(name) && quantised_.helpers.count(name) == 0;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names = checkpoint_.names();
    std::erase_if(names, [&](const std::string& name) { return quantised_.helpers.count(name) != 0; });
    return names;
  }
  TensorInfo info(const std::string& name) const override {
    TensorInfo info = checkpoint_.info(name);
    if (const QuantisedTensor* tensor = quantised(name)) {
      info.dtype_name = tensor->format();
      info.dtype = DType::kF32;
      info.shape = tensor->shape();
      info.bytes = static_cast<uint64_t>(info.shape.size()) * sizeof(float);
    }
    return info;
  }
  std::string where(const std::string& name) const override {
    return (contains(name) ? checkpoint_.file(name) : checkpoint_.folder()).string();
  }
  TensorView mapped(const std::string& name) const override {
    const TensorInfo& found = checkpoint_.info(name);
    if (quantised(name) != nullptr) return {};
    return found.dtype && found.aligned ? checkpoint_.view(name) : TensorView();
  }
  void read(const std::string& name, const TensorView& out) const override {
    const QuantisedTensor* tensor = quantised(name);
    if (tensor == nullptr) return read_stored(checkpoint_.view(name), name, out, threads_);
    const TensorView flat = out.reshape({out.size()});
    in_parts(out.size(), threads_,
             [&](IndexRange part) { read_quantised(*tensor, part, flat.slice(0, part.begin, part.end)); });
  }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    if (const QuantisedTensor* tensor = quantised(name)) return read_quantised(*tensor, range, out);
    const TensorView stored = checkpoint_.view(name);
    ZT_CHECK(out.size() == range.size() && range.end <= stored.size());
    auto* from = static_cast<std::byte*>(stored.raw()) + range.begin * static_cast<int64_t>(dtype_size(stored.dtype()));
    read_stored({from, stored.dtype(), out.shape()}, name, out, 1);
  }
  bool reads_parts(const std::string&) const override { return true; }
  std::optional<Int8Codes> int8_codes(const std::string& name) const override {
    const QuantisedTensor* tensor = quantised(name);
    return tensor == nullptr ? std::nullopt : tensor->int8_codes();
  }
  void will_need(const std::string& name) const override { checkpoint_.will_need(name); }
  void release(const std::string& name) const override { checkpoint_.release(name); }
  void require_unchanged() const override { checkpoint_.require_unchanged(); }
  std::string identity() const override { return checkpoint_.identity(); }

 private:
  const QuantisedTensor* quantised(const std::string& name) const {
    const auto found = quantised_.tensors.find(name);
    return found == quantised_.tensors.end() ? nullptr : found->second.get();
  }

  void read_stored(const TensorView& stored, const std::string& name, const TensorView& out, int threads) const {
    if (out.size() == 0) return;
    if (stored.dtype() == out.dtype()) {
      copy_bytes(stored, out, threads);
    } else if (out.dtype() == DType::kF32) {
      convert_stored<float>(stored, out, label(*this, name), threads);
    } else if (out.dtype() == DType::kBF16) {
      convert_stored<BFloat16>(stored, out, label(*this, name), threads);
    } else {
      fail("{} is stored as {} and cannot be read as {}", label(*this, name), dtype_name(stored.dtype()),
           dtype_name(out.dtype()));
    }
  }

  Checkpoint checkpoint_;
  QuantisedTensors quantised_;
  int threads_;
};

}  // namespace

bool is_readable(const TensorInfo& info) {
  return info.dtype == DType::kF32 || info.dtype == DType::kBF16 || info.dtype == DType::kF16 ||
         info.dtype == DType::kF64;
}

void WeightSource::read_range(const std::string& name, IndexRange range, const TensorView& out) const {
  const Tensor whole = Tensor::uninitialized(out.dtype(), info(name).shape);
  read(name, whole);
  ZT_CHECK(out.size() == range.size() && range.end <= whole.size());
  std::memcpy(out.raw(), whole.data<std::byte>() + range.begin * static_cast<int64_t>(dtype_size(out.dtype())),
              out.bytes());
}

void require_shape(const WeightSource& source, const std::string& name, const Shape& expected) {
  const Shape found = source.info(name).shape;
  if (found == expected) return;
  fail("{} has shape {}, but {} is needed", label(source, name), found.to_string(), expected.to_string());
}

std::shared_ptr<const WeightSource> checkpoint_source(Checkpoint checkpoint, int threads) {
  return std::make_shared<CheckpointSource>(std::move(checkpoint), threads);
}

Weights::Weights(std::shared_ptr<const WeightSource> source) : Weights(std::move(source), Loading{}) {}
Weights::Weights(std::shared_ptr<const WeightSource> source, Loading loading)
    : source_(std::move(source)), loading_(std::move(loading)), cache_(std::make_unique<Cache>()) {}
Weights::Weights(Weights&&) noexcept = default;
Weights::~Weights() {
  if (loading_.cache) loading_.cache->stop();  // it may be writing from the buffers
}

bool Weights::contains(const std::string& name) const { return source_->contains(name); }
std::vector<std::string> Weights::names() const { return source_->names(); }
TensorInfo Weights::info(const std::string& name) const { return source_->info(name); }
std::optional<Int8Codes> Weights::int8_codes(const std::string& name) const { return source_->int8_codes(name); }
void Weights::will_need(const std::string& name) const { source_->will_need(name); }
void Weights::release(const std::string& name) const { source_->release(name); }
void Weights::require_unchanged() const {
  source_->require_unchanged();
  const std::lock_guard loading(cache_->loading);
  for (const auto& buffer : cache_->buffers) buffer->require_unchanged();
}

namespace {

// What of a mapping lies in none of the parts.
std::vector<WeightStream::Range> rest_of(const WeightStream::Range& mapping,
                                         const std::vector<WeightStream::Part>& parts) {
  std::vector<WeightStream::Range> taken, rest;
  for (const WeightStream::Part& part : parts) taken.insert(taken.end(), part.ranges.begin(), part.ranges.end());
  std::sort(taken.begin(), taken.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  taken.push_back({mapping.begin + mapping.bytes, 0});
  const std::byte* at = mapping.begin;
  for (const WeightStream::Range& range : taken) {
    if (at < range.begin) rest.push_back({at, static_cast<size_t>(range.begin - at)});
    at = range.begin + range.bytes;
  }
  return rest;
}

}  // namespace

std::unique_ptr<WeightStream> Weights::stream(std::vector<WeightStream::Part> parts) const {
  if (!cache_->streamed) return nullptr;
  const auto& [file, mapping, storage] = *cache_->streamed;
  for (WeightStream::Part& part : parts) {
    // Damaged ones were packed into memory.
    std::erase_if(part.ranges, [&, &all = mapping](const WeightStream::Range& range) {
      return range.begin < all.begin || range.begin >= all.begin + all.bytes;
    });
  }
  const std::vector<WeightStream::Range> rest = rest_of(mapping, parts);
  if (loading_.shards != nullptr) {
    // One part in use and one on its way.
    storage->read(rest);
    return std::make_unique<WeightStream>(storage, parts, WeightStream::least_bytes(parts));
  }
  size_t others = storage->reading_bytes(parts);
  for (const WeightStream::Range& range : rest) others += range.bytes;
  const size_t least = others + WeightStream::least_bytes(parts);
  if (loading_.memory != kFewestParts && loading_.memory < least) {
    constexpr double kGb = 1e-9;
    fail("weight_memory={:.3g} is too small for {}: {:.3f} GB are needed, for two blocks and what is in no block",
         static_cast<double>(loading_.memory) * kGb, file, static_cast<double>(least) * kGb);
  }
  storage->read(rest);
  const size_t room = loading_.memory == kFewestParts ? WeightStream::usual_bytes(parts) : loading_.memory - others;
  return std::make_unique<WeightStream>(storage, std::move(parts), room);
}

size_t Weights::copied_bytes() const {
  const std::lock_guard lock(cache_->mutex);
  return cache_->bytes;
}

bool Weights::lie_in_cache() const {
  const std::lock_guard lock(cache_->mutex);
  return cache_->mapped;
}

void Weights::check(const std::string& name, const Shape& expected, DType wanted) const {
  require_shape(*source_, name, expected);
  const TensorInfo found = source_->info(name);
  if (!found.dtype) {
    fail("{} has dtype {}, which cannot be computed with as {}; store it as F32, BF16 or F16", label(*source_, name),
         found.dtype_name, dtype_name(wanted));
  }
}

TensorView Weights::get(const std::string& name, const Shape& expected, DType wanted) const {
  check(name, expected, wanted);
  // Smaller ones would keep more of the file resident than they are.
  const TensorView mapped = source_->mapped(name);
  if (mapped && mapped.dtype() == wanted && mapped.bytes() >= kMappedAround) return mapped;
  return get_fused({name}, {expected}, wanted);
}

TensorView Weights::get_fused(const std::vector<std::string>& names, const std::vector<Shape>& expected,
                              DType wanted) const {
  ZT_CHECK(!names.empty() && names.size() == expected.size());
  Shape joined = expected.front();
  for (size_t i = 0; i < names.size(); ++i) {
    check(names[i], expected[i], wanted);
    if (i == 0) continue;
    ZT_CHECK(joined.rank() > 0);
    Shape same = expected[i];
    same[0] = joined[0];
    ZT_CHECK(same == joined, "{} does not join {}", expected[i].to_string(), joined.to_string());
    joined[0] += expected[i][0];
  }

  Cache::Entry& entry = cache_->entry({names, wanted});
  const std::lock_guard lock(entry.mutex);
  if (entry.tensor) return entry.tensor.view();
  Tensor tensor = Tensor::uninitialized(wanted, joined);
  if (names.size() == 1) {
    source_->read(names[0], tensor.view());
  } else {
    int64_t row = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      source_->read(names[i], tensor.view().slice(0, row, row + expected[i][0]));
      row += expected[i][0];
    }
  }
  for (const std::string& name : names) source_->release(name);
  entry.tensor = std::move(tensor);
  const std::lock_guard total(cache_->mutex);
  cache_->bytes += entry.tensor.view().bytes();
  return entry.tensor.view();
}

}  // namespace zoetrope::io
