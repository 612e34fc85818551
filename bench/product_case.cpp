// `bench product`: a layer's matrix multiplication x·wᵀ alone, over shapes × dtypes × threads. Each result is verified,
// then timed between windows that measure the peak of the dtype's instructions.
#include <cmath>
#include <random>

#include "base/error.h"
#include "base/words.h"
#include "bench/attention_data.h"
#include "bench/cases.h"
#include "bench/peak.h"
#include "bench/words.h"
#include "kernels/gemm/packed.h"
#include "pipeline/settings/dtype_word.h"
#include "tensor/half.h"

namespace zoetrope::bench {
namespace {

using kernels::PackedMatrix;

constexpr int kMostThreads = 4096;
constexpr int64_t kMostSize = int64_t{1} << 20, kMostElements = int64_t{1} << 31;

constexpr const char* kLayers =
    "1560x4608x1536,1560x1536x1536,1560x8960x1536,1560x1536x8960,7800x4608x1536,7800x1536x1536,7800x8960x1536,"
    "7800x1536x8960";

struct ProductShape {
  int64_t rows = 0, columns = 0, terms = 0;
};

// "1560x1536x8960" is rows of x, outputs, terms.
std::vector<ProductShape> parse_products(const std::string& text) {
  std::vector<ProductShape> shapes;
  for (const std::string& word : split_words("shapes", text)) {
    std::vector<int64_t> sizes;
    for (const std::string_view part : split(word, 'x')) {
      const std::optional<int64_t> size = to_number<int64_t>(part);
      if (size && *size >= 1 && *size <= kMostSize) sizes.push_back(*size);
    }
    if (sizes.size() != 3 || split(word, 'x').size() != 3)
      fail("shapes: '{}' is no ROWSxOUTPUTSxTERMS of 1 to {} each, as 1560x1536x8960", word, kMostSize);
    const ProductShape shape{sizes[0], sizes[1], sizes[2]};
    if (shape.columns * shape.terms > kMostElements ||
        shape.rows * std::max(shape.columns, shape.terms) > kMostElements)
      fail("shapes: '{}' has a matrix of more than {} elements", word, kMostElements);
    shapes.push_back(shape);
  }
  return shapes;
}

// Normal values, the same for the same seed; x with rows apart, as the transformer has them.
Tensor normal(DType dtype, int64_t rows, int64_t columns, double deviation, uint64_t seed) {
  Tensor made = Tensor::uninitialized(dtype, {rows, columns});
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> value(0, static_cast<float>(deviation));
  for (int64_t i = 0; i < made.size(); ++i) {
    if (dtype == DType::kBF16) made.data<BFloat16>()[i] = to_bfloat16(value(generator));
    else made.data<float>()[i] = value(generator);
  }
  return made;
}

constexpr int64_t kPadding = 16;

struct Product {
  ProductShape shape;
  Tensor w, x, packed, out;
  PackedMatrix matrix;

  Product(const ProductShape& of, DType dtype) : shape(of) {
    matrix.n = shape.columns;
    matrix.k = shape.terms;
    matrix.dtype = dtype;
    matrix.layout = kernels::packed_layout(dtype);
    w = normal(dtype == DType::kF32 ? DType::kF32 : DType::kBF16, shape.columns, shape.terms,
               1 / std::sqrt(static_cast<double>(shape.terms)), 1);
    x = normal(kernels::operand_dtype(matrix), shape.rows, shape.terms + kPadding, 1, 2);
    packed = Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(kernels::packed_bytes(matrix))});
    matrix.data = packed.data<std::byte>();
    const TensorView stored = w;
    kernels::pack({&stored, 1}, matrix, packed.data<std::byte>());
    out = Tensor::uninitialized(DType::kF32, {shape.rows, shape.columns});
  }
  TensorView operand() const { return x.view().slice(1, 0, shape.terms); }
  double flop() const {
    return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
           static_cast<double>(shape.terms);
  }
  void run(Stream& stream) const {
    kernels::PackedGemm call;
    call.x = operand();
    call.w = matrix;
    call.out = out;
    kernels::packed_gemm(stream, call);
  }

  // Against float64, in a sample of rows and outputs. Float32 sums of K terms walk u·√K. The largest of 256 normal
  // values is about 2.9 of their size, of thousands 3.9: rounding to 127 steps of these makes (2.9 / 127) / √12 and
  // (3.9 / 127) / √12, 1.1 % together, and a third more where a sample is small.
  Verdict verdict() const {
    constexpr int64_t kSample = 64;
    const auto value = [](const Tensor& t, int64_t i) {
      return static_cast<double>(t.dtype() == DType::kBF16 ? to_float(t.data<BFloat16>()[i]) : t.data<float>()[i]);
    };
    double error = 0, size = 0;
    for (int64_t i = 0; i < std::min(kSample, shape.rows); ++i) {
      const int64_t row = i * shape.rows / std::min(kSample, shape.rows);
      for (int64_t j = 0; j < std::min(kSample, shape.columns); ++j) {
        const int64_t column = j * shape.columns / std::min(kSample, shape.columns);
        double exact = 0;
        for (int64_t k = 0; k < shape.terms; ++k)
          exact += value(x, row * (shape.terms + kPadding) + k) * value(w, column * shape.terms + k);
        error += std::pow(static_cast<double>(out.data<float>()[row * shape.columns + column]) - exact, 2);
        size += exact * exact;
      }
    }
    Verdict verdict;
    verdict.relative_l2 = std::sqrt(error / size);
    verdict.finite = std::isfinite(error);
    const double walk = 0x1p-24 * (4 + std::sqrt(static_cast<double>(shape.terms)));
    verdict.tolerance = matrix.dtype == DType::kI8 ? 0.015 : walk;
    return verdict;
  }
};

}  // namespace

OptionSet describe(ProductSettings& settings) {
  OptionSet options;
  options
      .text("shapes", settings.shapes, "ROWSxOUTPUTSxTERMS; unset: the layers of a 1.3B block at 1560 and 7800 tokens")
      .text("dtype", settings.dtype, "bf16, float32, int8, or all")
      .text("threads", settings.threads, "thread counts; 'all' is all that this process may use")
      .integer("repeat", settings.repeat, {0, 10000},
               "timed repeats; 0: five, or three where one takes more than a second")
      .number("window", settings.window, {0.0001, 60},
              "minimum duration of a repeat and of the peak windows around it, in seconds");
  return options;
}

Section bench_product(const ProductSettings& settings, const Progress& progress, Outcome& outcome) {
  const std::vector<std::string> dtypes =
      choose_dtypes("dtype", settings.dtype == "all" ? "bf16,int8,float32" : settings.dtype, true);
  const std::vector<ProductShape> shapes = parse_products(settings.shapes.empty() ? kLayers : settings.shapes);
  const std::vector<int> thread_counts = parse_counts("threads", settings.threads, available_threads(), kMostThreads);
  Section section;
  section.name = "product";
  section.title = "Matrix multiplications of layers on this CPU";
  section.note =
      "x·wᵀ with packed weights, 2·rows·outputs·terms operations. Every result was compared with float64 in a sample "
      "of its elements before it was timed; that of int8 includes the rounding of x and w. 'of peak' is the median "
      "over the repeats of operations per second, relative to the fastest multiply-adds of the dtype measured on the "
      "same threads right before and after each repeat.";
  section.table.columns = {{"rows", "rows"},
                           {"outputs", "outputs"},
                           {"terms", "terms"},
                           {"dtype", "dtype"},
                           {"threads", "threads"},
                           {"seconds_min", "least", Format::kSeconds},
                           {"seconds_median", "median", Format::kSeconds},
                           {"gflops", "Gop/s", Format::kOneDecimal},
                           {"peak_gflops", "peak", Format::kOneDecimal},
                           {"fraction_min", "least %", Format::kPercent, true},
                           {"fraction", "of peak", Format::kPercent},
                           {"fraction_max", "most %", Format::kPercent, true},
                           {"cpu", "cpu", Format::kPercent},
                           {"repeats", "repeats", Format::kText, true},
                           {"rel_l2", "rel L2", Format::kScientific},
                           {"tolerance", "tolerance", Format::kScientific, true},
                           {"note", ""}};
  for (const ProductShape& shape : shapes) {
    for (const std::string& dtype : dtypes) {
      const Product product(shape, pipeline::dtype_of(dtype));
      for (const int threads : thread_counts) {
        const std::string size = fmt::format("{}x{}x{}", shape.rows, shape.columns, shape.terms);
        if (progress) progress(fmt::format("{} {} on {}", size, dtype, counted(threads, "thread")));
        section.table.begin_row({shape.rows, shape.columns, shape.terms, dtype, int64_t{threads}});
        Stream stream(threads);
        product.run(stream);
        const Verdict verdict = product.verdict();
        section.table.set("rel_l2", verdict.relative_l2);
        section.table.set("tolerance", verdict.tolerance);
        if (!verdict.passed()) {
          ++outcome.wrong;
          section.table.set("note", verdict.note());
          continue;
        }
        const PairedOptions options{.repeats = static_cast<int>(settings.repeat), .window = settings.window};
        set_times(section.table,
                  time_beside_peak(fastest_isa(product.matrix.dtype, stream.team()), stream.team(), product.flop(),
                                   options, [&] { product.run(stream); }),
                  product.flop(), threads);
      }
    }
  }
  return section;
}

}  // namespace zoetrope::bench
