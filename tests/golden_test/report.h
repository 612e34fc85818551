// What golden_test prints and counts: one line a tensor, and the self-test that moves every checked tensor by ten
// tolerances and expects the check to fail.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/json.h"

namespace zoetrope::golden {

// A difference, or the tolerance of one.
struct Deviation {
  double rel_l2 = 0;
  double max_abs = 0;
};

// FOLDER/case.json. Python writes infinities that JSON does not have; they are read as null.
JsonObject load_case(const std::filesystem::path& folder);

// The noise that case.json records: "[RUN.]f32_vs_f64.TENSOR" and "[RUN.]bf16_vs_f32.TENSOR".
class NoiseFloor {
 public:
  explicit NoiseFloor(const JsonObject& case_json);
  // Of `tensor`, or the largest of the case where it has none of its own. `kind` is "f32_vs_f64" or "bf16_vs_f32";
  // `run` narrows to a run's entries.
  Deviation of(const std::string& kind, const std::string& tensor, const std::string& run = "") const;
  bool has(const std::string& kind, const std::string& run = "") const;

 private:
  std::map<std::string, Deviation> entries_;
};

// 4× the float32 noise floor; 1.5× the recorded bf16 error (relative L2 only: a bf16 maximum is one value's rounding).
Deviation float32_tolerance(Deviation noise);
Deviation bf16_tolerance(Deviation noise);

class Report {
 public:
  enum class Mode { kCheck, kSelfTest };
  explicit Report(Mode mode) : mode_(mode) {}

  void begin_case(std::string name) { case_ = std::move(name); }
  // Float tensors of one shape (F32, BF16, F64 each), relative L2 and, where tolerance.max_abs > 0, the largest
  // difference.
  void check(const std::string& tensor, const TensorView& ours, const TensorView& reference, Deviation tolerance);
  // All values equal.
  void check_equal(const std::string& tensor, const std::vector<double>& ours, const std::vector<double>& reference);
  void check_text(const std::string& tensor, const std::string& ours, const std::string& reference);
  // At most one level off, in at most one value of a hundred.
  void check_levels(const std::string& tensor, const TensorView& ours, const TensorView& reference);
  // A condition of its own, decided by `holds(moved)`: with moved = true the values are moved and it must not hold.
  template <typename Holds>
  void check_that(const std::string& tensor, const std::string& what, Holds&& holds) {
    if (mode_ == Mode::kCheck) {
      line(holds(false), tensor, 0, 0, what);
    } else {
      line(!holds(true), tensor, 0, 0, what + ", moved");
    }
  }
  void skip(const std::string& tensor, const std::string& reason);
  // Names that a test knows and the case has not recorded: said, and no failure.
  void absent(const std::vector<std::string>& names);
  void fail(const std::string& tensor, const std::string& reason);

  // Prints the count; the exit code.
  int finish() const;

 private:
  void line(bool pass, const std::string& tensor, double error, double tolerance, const std::string& reason);
  Mode mode_;
  std::string case_;
  int64_t passed_ = 0, failed_ = 0, skipped_ = 0;
};

std::vector<double> to_doubles(const TensorView& tensor);  // contiguous or not; F32, BF16, F64, I64, U8

// Each runs one kind of case. `root` is the data set's folder, `folder` the case's.
void run_transformer_case(Report& report, const std::filesystem::path& root, const std::filesystem::path& folder);
void run_vae_case(Report& report, const std::filesystem::path& root, const std::filesystem::path& folder);
void run_umt5_case(Report& report, const std::filesystem::path& root, const std::filesystem::path& folder);
void run_scheduler_case(Report& report, const std::filesystem::path& folder);
void run_rng_case(Report& report, const std::filesystem::path& folder);
void run_pipeline_case(Report& report, const std::filesystem::path& folder);
void run_lora_case(Report& report, const std::filesystem::path& root, const std::filesystem::path& folder);
void run_weights_case(Report& report, const std::filesystem::path& root, const std::filesystem::path& folder);

}  // namespace zoetrope::golden
