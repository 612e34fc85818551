// zoetrope convert: the weights of a component in another format, container or naming, with the error of each tensor.
#include "pipeline/model_files/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/print.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace zoetrope::cli {
namespace {

using pipeline::ConvertedTensor;
using pipeline::ConvertOptions;
using pipeline::ConvertReport;

std::string help() {
  ConvertOptions options;
  return fmt::format(
      "Keys, as key=value; IN may be given without its key:\n{}\n"
      "Quantised are the matrices of the blocks; all other tensors keep their type. Formats whose scales come from a "
      "search\n(K-quants, IQ4) are read, but not made.\n\n"
      "Example:\n  zoetrope convert Wan2.1-T2V-14B/transformer out=wan-fp8.safetensors format=fp8_e4m3 "
      "layout=original\n",
      pipeline::describe_options(options).help());
}

void print_tensors(const ConvertReport& report) {
  size_t name = 6, types = 4;  // widths of the columns, at least those of their titles
  const auto both = [](const ConvertedTensor& tensor) {
    return tensor.from == tensor.to ? tensor.to : fmt::format("{} -> {}", tensor.from, tensor.to);
  };
  for (const ConvertedTensor& tensor : report.tensors) {
    name = std::max(name, printable(tensor.name).size());
    types = std::max(types, both(tensor).size());
  }
  print("{:<{}}  {:<{}}  {:>12}  {:>13}\n", "tensor", name, "type", types, "rel L2 error", "largest error");
  for (const ConvertedTensor& tensor : report.tensors) {
    print("{:<{}}  {:<{}}  {:>12.3g}  {:>13.3g}\n", printable(tensor.name), name, both(tensor), types,
          tensor.relative_l2, tensor.largest_error);
  }
}

void print_summary(const ConvertOptions& options, const ConvertReport& report) {
  constexpr double kGiga = 1e-9;
  const auto worst = std::max_element(report.tensors.begin(), report.tensors.end(),
                                      [](const auto& a, const auto& b) { return a.largest_error < b.largest_error; });
  for (const std::string& note : report.notes) print("note: {}\n", printable(note));
  print("Wrote {}: {} tensors, {} of them as {}; {:.3f} GB from {:.3f} GB\n", printable(options.out),
        report.tensors.size(), report.changed_format, options.format, static_cast<double>(report.bytes) * kGiga,
        static_cast<double>(report.bytes_before) * kGiga);
  if (worst->largest_error == 0) print("Every value is exact.\n");
  else
    print("Relative L2 error of all values {:.3g}; largest error {:.3g}, in {}\n", report.relative_l2,
          worst->largest_error, printable(worst->name));
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  ConvertOptions options;
  OptionSet set = pipeline::describe_options(options);
  for (const std::string& word : arguments) {
    if (word.find('=') != std::string::npos) {
      set.set_argument(word);
    } else {
      if (!options.in.empty()) fail("convert takes one IN, but both '{}' and '{}' are given", options.in, word);
      set.set("in", word, kCommandLine);
    }
  }
  if (world != nullptr && world->rank() != 0) return 0;
  stop_at_safe_points();
  pipeline::ConvertCallbacks callbacks;
  callbacks.cancelled = interrupted;
  ConvertReport report;
  {
    BytesProgress bar("Write");
    callbacks.progress = [&](int64_t done, int64_t total) { bar.update(done, total); };
    report = pipeline::convert(options, callbacks);
  }
  if (options.tensors) print_tensors(report);
  print_summary(options, report);
  return 0;
}

}  // namespace

const Command kConvert = {"convert",
                          "IN out=FILE format=FORMAT key=value…",
                          "Write weights in another format or layout, and say what error that makes",
                          help,
                          nullptr,
                          run};

}  // namespace zoetrope::cli
