#include "models/encoders/part_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/index_range.h"
#include "base/test_folder.h"
#include "io/weights/safetensors.h"
#include "tensor/half.h"

namespace zoetrope::encoders {
namespace {

constexpr int64_t kRows = 6, kColumns = 10;

float value(int64_t row, int64_t column) { return static_cast<float>(row * 100 + column) / 64.0f; }

// A matrix "w" as the file stores it; where asked for, behind a byte that leaves it at an odd address.
std::shared_ptr<const io::WeightSource> stored(const TestFolder& folder, DType dtype, bool shifted) {
  const Tensor w(dtype, {kRows, kColumns});
  for (int64_t i = 0; i < w.size(); ++i) {
    const float x = value(i / kColumns, i % kColumns);
    if (dtype == DType::kF32) w.data<float>()[i] = x;
    if (dtype == DType::kBF16) w.data<BFloat16>()[i] = to_bfloat16(x);
    if (dtype == DType::kF16) w.data<Float16>()[i] = from_float<Float16>(x);
    if (dtype == DType::kF64) w.data<double>()[i] = static_cast<double>(x);
  }
  const std::string body(w.data<char>(), w.view().bytes());
  const size_t at = shifted ? 1 : 0;
  std::string header = R"({"w":{"dtype":")" + std::string(dtype_name(dtype)) + R"(","shape":[6,10],"data_offsets":[)" +
                       std::to_string(at) + "," + std::to_string(at + body.size()) + "]}";
  if (shifted) header += R"(,"odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof length);
  folder.write("w.safetensors", file + header + std::string(at, 'x') + body);
  return io::checkpoint_source(io::Checkpoint::open_file(folder / "w.safetensors"));
}

float element(const TensorView& view, int64_t row, int64_t column) {
  const int64_t at = row * view.stride(0) + column;
  return view.dtype() == DType::kF32 ? view.data<float>()[at] : to_float(view.data<BFloat16>()[at]);
}

// How "w" is divided: along an axis, of which pairs stay together; not at all.
io::TensorTable table(std::optional<io::ShardAxis> axis) {
  return {{.name = "w", .shape = {kRows, kColumns}, .shard_axis = axis}};
}

struct Division {
  std::optional<io::ShardAxis> axis;
  int parts;
};
const Division kDivisions[] = {{std::nullopt, 2}, {io::ShardAxis{0, 2}, 3}, {io::ShardAxis{1, 2}, 4}};

TEST(PartWeights, AnyPartOfAnyFile) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64})
    for (const bool shifted : {false, true})
      for (const DType wanted : {DType::kF32, DType::kBF16})
        for (const Division& division : kDivisions)
          for (int part = 0; part < division.parts; ++part) {
            const TestFolder folder;
            Stream stream(3);
            PartWeights weights(stored(folder, dtype, shifted), table(division.axis), wanted, stream, division.parts,
                                part);
            const bool in_place = !shifted && (dtype == DType::kF32 || dtype == DType::kBF16);
            EXPECT_EQ(weights.needs_buffer(), !in_place);
            const Tensor buffer(wanted, {2 * kRows * kColumns});
            weights.set_buffer(buffer);
            weights.reset_buffer();
            IndexRange rows{0, kRows}, columns{0, kColumns};
            if (division.axis) {
              IndexRange& divided = division.axis->axis == 0 ? rows : columns;
              const IndexRange pairs = split_range(divided.end / 2, division.parts, part);
              divided = {2 * pairs.begin, 2 * pairs.end};
            }
            // Twice, side by side in the buffer.
            const TensorView both[] = {weights.matrix("w"), weights.matrix("w")};
            for (const TensorView& view : both) {
              ASSERT_EQ(view.shape(), Shape({rows.size(), columns.size()}));
              EXPECT_EQ(view.dtype(), in_place ? dtype : wanted);
              for (int64_t i = 0; i < view.extent(0); ++i)
                for (int64_t j = 0; j < view.extent(1); ++j) {
                  float expected = value(rows.begin + i, columns.begin + j);
                  // F16 holds these values exactly; what is F32 in place is rounded where it is multiplied.
                  if (dtype == DType::kBF16 || (!in_place && wanted == DType::kBF16))
                    expected = to_float(to_bfloat16(expected));
                  ASSERT_EQ(element(view, i, j), expected) << dtype_name(dtype) << " " << i << " " << j;
                }
            }
          }
}

TEST(PartWeights, RowsOfATable) {
  for (const bool shifted : {false, true}) {
    const TestFolder folder;
    Stream stream(1);
    PartWeights weights(stored(folder, DType::kF16, shifted), table(std::nullopt), DType::kF32, stream);
    const std::vector<int32_t> ids{5, 0, 0, 3};
    const Tensor out(DType::kF32, {4, kColumns});
    weights.gather_rows("w", ids, out);
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t j = 0; j < kColumns; ++j) EXPECT_EQ(element(out, i, j), value(ids[static_cast<size_t>(i)], j));
  }
}

// Counts the rows that are read before their pages are released.
class CountingSource : public io::WeightSource {
 public:
  explicit CountingSource(std::shared_ptr<const io::WeightSource> base) : base_(std::move(base)) {}
  bool contains(const std::string& name) const override { return base_->contains(name); }
  std::vector<std::string> names() const override { return base_->names(); }
  io::TensorInfo info(const std::string& name) const override { return base_->info(name); }
  std::string where(const std::string& name) const override { return base_->where(name); }
  TensorView mapped(const std::string& name) const override { return base_->mapped(name); }
  void read(const std::string& name, const TensorView& out) const override { base_->read(name, out); }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    base_->read_range(name, range, out);
    most = std::max(most, ++unreleased);
  }
  void release(const std::string&) const override { unreleased = 0; }

  mutable int unreleased = 0, most = 0;

 private:
  std::shared_ptr<const io::WeightSource> base_;
};

TEST(PartWeights, FewPagesOfATableAreMapped) {
  const TestFolder folder;
  const auto source = std::make_shared<CountingSource>(stored(folder, DType::kF32, false));
  Stream stream(1);
  PartWeights weights(source, table(std::nullopt), DType::kF32, stream);
  const std::vector<int32_t> ids(500, 3);
  const Tensor out(DType::kF32, {500, kColumns});
  weights.gather_rows("w", ids, out);
  EXPECT_EQ(source->most, 32);
  EXPECT_EQ(source->unreleased, 0);
  EXPECT_EQ(element(out, 499, 2), value(3, 2));
}

}  // namespace
}  // namespace zoetrope::encoders
