#include "pipeline/model_files/convert.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/cancel.h"
#include "base/error.h"
#include "comm/launcher.h"
#include "io/weights/in_parts.h"
#include "pipeline/model_files/convert_output.h"
#include "pipeline/model_files/convert_plan.h"
#include "tensor/finite.h"

namespace zoetrope::pipeline {
namespace {

constexpr int64_t kPiece = int64_t{4} << 20;  // elements that are read and written at a time
static_assert(kPiece % io::TensorEncoder::kTogether == 0);

// Sums over the values of one tensor, or of all.
struct Errors {
  double squares = 0, of_values = 0, largest = 0;
  void add(const Errors& other) {
    squares += other.squares;
    of_values += other.of_values;
    largest = std::max(largest, other.largest);
  }
  void add(float value, float decoded) {
    const double error = static_cast<double>(decoded) - static_cast<double>(value);
    squares += error * error;
    of_values += static_cast<double>(value) * static_cast<double>(value);
    largest = std::max(largest, std::abs(error));
  }
  double relative() const { return squares == 0 ? 0 : std::sqrt(squares / of_values); }
};

class Conversion {
 public:
  Conversion(const ConvertOptions& options, const ConvertCallbacks& callbacks)
      : options_(options),
        callbacks_(callbacks),
        threads_(comm::process_threads(options.threads)),
        in_(open_alone(options.in, options.model)),
        source_(io::checkpoint_source(in_.checkpoint)),
        plan_(plan_conversion(options, in_, *source_)) {}

  ConvertReport run() {
    output_ = open_convert_output(options_, plan_, in_);
    tell();
    std::map<std::string, ConvertedTensor> converted;
    Errors all;
    for (const PlannedTensor& tensor : output_->tensors()) {
      const Errors errors = write(tensor);
      all.add(errors);
      converted[tensor.to] = {tensor.to, tensor.stored, tensor.type_text(), errors.relative(), errors.largest};
    }
    source_->require_unchanged();
    output_->commit();
    ConvertReport report;
    for (const PlannedTensor& tensor : plan_.tensors) report.tensors.push_back(converted.at(tensor.to));
    report.changed_format = plan_.in_format;
    report.bytes_before = in_.checkpoint.bytes();
    report.bytes = output_->bytes();
    report.relative_l2 = all.relative();
    report.notes = plan_.notes;
    return report;
  }

 private:
  void tell() const {
    stop_if_cancelled(callbacks_.cancelled);
    if (callbacks_.progress) callbacks_.progress(static_cast<int64_t>(done_), static_cast<int64_t>(output_->bytes()));
  }

  void put(const void* data, size_t bytes) {
    output_->write(data, bytes);
    done_ += bytes;
    tell();
  }

  Errors write(const PlannedTensor& tensor) {
    if (tensor.format == nullptr) return write_stored(tensor);
    const auto encoder = io::tensor_encoder(tensor.format->format, tensor.shape);
    source_->will_need(tensor.from);
    if (encoder->observes()) {
      pieces(tensor, [&](IndexRange piece) {
        read(tensor, piece);
        parts(piece.size(), [&](IndexRange part) {
          encoder->observe({piece.begin + part.begin, piece.begin + part.end}, values_.data() + part.begin);
        });
      });
    }
    Errors errors;
    pieces(tensor, [&](IndexRange piece) {
      read(tensor, piece);
      errors.add(encode(tensor, *encoder, piece));
      put(codes_.data(), encoder->bytes(piece.size()));
    });
    if (tensor.has_scales()) {
      for (const io::TensorEncoder::Scales& scales : encoder->scales()) put(scales.bytes.data(), scales.bytes.size());
      const std::string text = tensor.layer_text(*encoder);
      put(text.data(), text.size());
    }
    source_->release(tensor.from);
    return errors;
  }

  // The bytes that are there; numbers are read, so that damaged ones are found.
  Errors write_stored(const PlannedTensor& tensor) {
    if (tensor.numbers) pieces(tensor, [&](IndexRange piece) { read(tensor, piece); });
    const io::TensorFile& file = in_.checkpoint.holder(tensor.from);
    put(file.bytes(tensor.from), file.info(tensor.from).bytes);
    source_->release(tensor.from);
    return {};
  }

  template <typename Body>
  static void pieces(const PlannedTensor& tensor, const Body& body) {
    const int64_t size = tensor.shape.size();
    for (int64_t begin = 0; begin < size; begin += kPiece) body(IndexRange{begin, std::min(size, begin + kPiece)});
  }

  // body(part of [0, count)) on several threads, each of what is encoded together.
  template <typename Body>
  void parts(int64_t count, const Body& body) const {
    constexpr int64_t kTogether = io::TensorEncoder::kTogether;
    const auto whole = [&](int64_t at) { return at == count ? count : at / kTogether * kTogether; };
    io::in_parts(count, threads_, [&](IndexRange part) { body(IndexRange{whole(part.begin), whole(part.end)}); });
  }

  // Into values_. A value that is not finite is an Error.
  void read(const PlannedTensor& tensor, IndexRange piece) {
    values_.resize(static_cast<size_t>(piece.size()));
    parts(piece.size(), [&](IndexRange part) {
      const TensorView out(values_.data() + part.begin, DType::kF32, {part.size()});
      source_->read_range(tensor.from, {piece.begin + part.begin, piece.begin + part.end}, out);
      if (const std::optional<NonFinite> found = first_non_finite(out)) {
        fail("{}: tensor '{}' holds {} at element {}; the file is damaged, download it again",
             source_->where(tensor.from), tensor.from, found->value, piece.begin + part.begin + found->index);
      }
    });
  }

  // values_ into codes_.
  Errors encode(const PlannedTensor& tensor, io::TensorEncoder& encoder, IndexRange piece) {
    codes_.resize(encoder.bytes(piece.size()));
    decoded_.resize(values_.size());
    std::mutex mutex;
    std::map<int64_t, Errors> of_parts;  // added up in their order, so that the sum is the same in every run
    parts(piece.size(), [&](IndexRange part) {
      const IndexRange elements{piece.begin + part.begin, piece.begin + part.end};
      const float* values = values_.data() + part.begin;
      float* decoded = decoded_.data() + part.begin;
      std::byte* codes = codes_.data() + encoder.bytes(part.begin);
      encoder.encode(elements, values, codes);
      encoder.decode(elements, codes, decoded);
      Errors errors;
      for (int64_t i = 0; i < part.size(); ++i) {
        if (!std::isfinite(decoded[i])) refuse_value(tensor, values, part.size(), decoded, elements.begin);
        errors.add(values[i], decoded[i]);
      }
      const std::lock_guard lock(mutex);
      of_parts[part.begin] = errors;
    });
    Errors errors;
    for (const auto& [begin, of_part] : of_parts) errors.add(of_part);
    return errors;
  }

  [[noreturn]] void refuse_value(const PlannedTensor& tensor, const float* values, int64_t count, const float* decoded,
                                 int64_t first) const {
    // Of a block with such a value all are lost, so the largest of them is the reason.
    int64_t at = -1;
    for (int64_t i = 0; i < count; ++i)
      if (!std::isfinite(decoded[i]) && (at < 0 || std::abs(values[i]) > std::abs(values[at]))) at = i;
    fail("{}: tensor '{}' holds {} at element {}, which is too large for {}; bf16 and f32 have room for it",
         source_->where(tensor.from), tensor.from, values[at], first + at, tensor.format->word);
  }

  const ConvertOptions& options_;
  const ConvertCallbacks& callbacks_;
  int threads_;
  ComponentAlone in_;
  std::shared_ptr<const io::WeightSource> source_;
  ConvertPlan plan_;
  std::unique_ptr<ConvertOutput> output_;
  uint64_t done_ = 0;  // bytes of the output
  std::vector<float> values_, decoded_;
  std::vector<std::byte> codes_;
};

}  // namespace

OptionSet describe_options(ConvertOptions& o) {
  std::vector<std::string> words;
  for (const io::NumberFormatInfo& info : io::number_formats()) words.emplace_back(info.word);
  static const std::string format_help = fmt::format("of the output's numbers: {}", fmt::join(words, ", "));
  static const std::vector<std::pair<std::string, NameLayout>> layouts = {
      {"kept", NameLayout::kKept}, {"diffusers", NameLayout::kDiffusers}, {"original", NameLayout::kOriginal}};
  OptionSet set;
  set.text("in", o.in, "folder of a component, repository of a model's authors, or a safetensors or GGUF file")
      .text("out", o.out,
            "what to write: a file that ends in .safetensors or .gguf, or FOLDER/ in the layout of the hub")
      .text("format", o.format, format_help.c_str())
      .choice("layout", o.layout, layouts,
              "names of the output: those of the input, of the hub's folders, or of Wan's own code, as in ComfyUI")
      .text("model", o.model,
            "folder with configs, for weights without a config whose shapes are those of no known model")
      .flag("tensors", o.tensors, "print a line with the error of each tensor")
      .integer("threads", o.threads, {1, 4096}, "compute threads; unset: all cores");
  return set;
}

ConvertReport convert(const ConvertOptions& options, const ConvertCallbacks& callbacks) {
  if (options.in.empty()) fail("in: name a component's folder, or a file, to convert");
  wanted_container(options);  // before anything is opened
  return Conversion(options, callbacks).run();
}

}  // namespace zoetrope::pipeline
