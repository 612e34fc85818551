#include "models/wan/part_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/test_folder.h"
#include "io/safetensors.h"
#include "tensor/half.h"

namespace zoetrope::wan {
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

struct Part {
  IndexRange rows, columns;
};
constexpr Part kParts[] = {
    {{0, kRows}, {0, kColumns}}, {{2, 5}, {0, kColumns}}, {{0, kRows}, {3, 8}}, {{1, 2}, {9, 10}}};

TEST(PartWeights, AnyPartOfAnyFile) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64})
    for (const bool shifted : {false, true})
      for (const DType wanted : {DType::kF32, DType::kBF16}) {
        const TestFolder folder;
        Stream stream(3);
        PartWeights weights(stored(folder, dtype, shifted), wanted, stream);
        const bool in_place = !shifted && (dtype == DType::kF32 || dtype == DType::kBF16);
        EXPECT_EQ(weights.needs_buffer("w"), !in_place);
        const Tensor buffer(wanted, {2 * kRows * kColumns});
        weights.set_buffer(buffer);
        for (const Part& part : kParts) {
          weights.reset_buffer();
          // Twice, side by side in the buffer.
          const TensorView both[] = {weights.matrix("w", part.rows, part.columns),
                                     weights.matrix("w", part.rows, part.columns)};
          for (const TensorView& view : both) {
            ASSERT_EQ(view.shape(), Shape({part.rows.size(), part.columns.size()}));
            EXPECT_EQ(view.dtype(), in_place ? dtype : wanted);
            for (int64_t i = 0; i < view.extent(0); ++i)
              for (int64_t j = 0; j < view.extent(1); ++j) {
                float expected = value(part.rows.begin + i, part.columns.begin + j);
                // F16 holds these values exactly; what is F32 in place is rounded where it is multiplied.
                if (dtype == DType::kBF16 || (!in_place && wanted == DType::kBF16))
                  expected = to_float(to_bfloat16(expected));
                ASSERT_EQ(element(view, i, j), expected) << dtype_name(dtype) << " " << i << " " << j;
              }
          }
        }
      }
}

TEST(PartWeights, RowsOfATable) {
  for (const bool shifted : {false, true}) {
    const TestFolder folder;
    Stream stream(1);
    PartWeights weights(stored(folder, DType::kF16, shifted), DType::kF32, stream);
    const std::vector<int32_t> ids{5, 0, 0, 3};
    const Tensor out(DType::kF32, {4, kColumns});
    weights.gather_rows("w", ids, out);
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t j = 0; j < kColumns; ++j) EXPECT_EQ(element(out, i, j), value(ids[static_cast<size_t>(i)], j));
  }
}

}  // namespace
}  // namespace zoetrope::wan
