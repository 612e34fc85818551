// What int8 costs each block of a model, measured once by `zoetrope int8`, and the blocks that a budget of error
// allows. Results are kept in a file of the user's cache folder:
//   $XDG_CACHE_HOME/zoetrope/int8.json, else $HOME/.cache/zoetrope/int8.json
// They hold for the weights of one transformer on every CPU: all kernels give the same bits of int8 products, and
// attention in int8 and bf16 that differ by less than these round.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace zoetrope::pipeline {

// Of a velocity, or of how far it is off: the squared L2 norms of its conditional branch c and its unconditional branch
// u, and their product c·u.
struct BranchNorms {
  double conditional = 0, unconditional = 0, product = 0;

  bool zero() const { return conditional == 0 && unconditional == 0; }
  bool operator==(const BranchNorms&) const = default;
  // |u + guidance · (c − u)|²
  double guided(double guidance) const;
};

// How far int8 moves an expert's velocity from that of bf16, with the same inputs, at some timesteps. An error is the
// relative L2 of the guided velocity, so it depends on the guidance: at 5, errors of branches of the same size that
// have nothing to do with each other add up to √(5² + 4²) of one. 1: the conditional branch alone.
struct Int8Errors {
  std::string weights;  // transformer_identity()
  std::string name;     // of the model, for people
  double guidance = 1;  // of the run whose latents these are
  // Of attention_int8_limit, descending; empty where an older version measured it.
  std::vector<double> attention_limits = {};
  struct At {
    double timestep = 0;
    BranchNorms velocity = {};                // of bf16
    std::vector<BranchNorms> blocks = {};     // what each adds in int8, as TransformerConfig::int8_blocks counts
    BranchNorms all = {};                     // of all blocks in int8
    BranchNorms rounding = {};                // of any small change: what follows is rounded to bf16 otherwise
    std::vector<BranchNorms> attention = {};  // of attention_dtype=int8, by attention_limits; 0 where it took no head

    // Infinite where it is an error of a velocity of zeros.
    double relative(const BranchNorms& error, double guidance) const;
  };
  std::vector<At> at = {};

  int64_t block_count() const { return at.empty() ? 0 : static_cast<int64_t>(at.front().blocks.size()); }
};

// An element of Int8Errors::attention_limits; nothing: attention is not in int8.
using AttentionLimit = std::optional<size_t>;

// The error of the velocity with a set of blocks in int8, and with attention in int8. Errors of blocks are independent,
// so their squares add up:
//   error² = rounding² + share · Σ block² + (attention² − rounding²),
// where `share` makes it `all` for all blocks, which is measured: errors that agree or cancel out are counted so.
double predicted_error(const Int8Errors::At& at, double guidance, const std::vector<int64_t>& blocks,
                       AttentionLimit attention = {});
// The largest of the timesteps.
double predicted_error(const Int8Errors& errors, double guidance, const std::vector<int64_t>& blocks,
                       AttentionLimit attention = {});

// Of one forward, where no budget is set.
inline constexpr double kDefaultInt8Budget = 0.02;

struct Int8Choice {
  std::vector<int64_t> blocks;  // ascending; empty where not even one fits
  double error = 0;             // predicted, the largest of the timesteps; of one block where none fits
};
// As many blocks as the budget allows at every timestep, those with the smallest errors. `attention`: its error is
// within the budget, too.
Int8Choice choose_int8_blocks(const Int8Errors& errors, double guidance, double budget, AttentionLimit attention = {});

// A number of three digits that is not below the error.
std::string at_least(double error);
// "with guidance 5"; 1: "without guidance".
std::string guidance_text(double guidance);
// "1-7,9,11-28", as the key int8_layers takes it.
std::string block_ranges(const std::vector<int64_t>& blocks);

class Int8Calibration {
 public:
  // Empty where there is no folder for it; then nothing is found or remembered.
  static std::filesystem::path default_file();
  // In the file that the key int8_calibration names, or in the default one.
  static Int8Calibration named(const std::string& file) {
    return Int8Calibration(file.empty() ? default_file() : std::filesystem::path(file));
  }

  explicit Int8Calibration(std::filesystem::path file) : file_(std::move(file)) {}

  const std::filesystem::path& file() const { return file_; }
  // All that was measured; none where the file does not exist. Throws Error, saying what to do, where it is broken.
  std::vector<Int8Errors> entries() const;
  std::optional<Int8Errors> find(const std::string& weights) const;
  // Makes its folder. Throws Error where nothing can be remembered here: before a measurement, not after it.
  void require_writable() const;
  // Adds or replaces, all or nothing. Throws Error where that is not possible.
  void remember(const Int8Errors& errors) const;

 private:
  std::filesystem::path file_;
};

}  // namespace zoetrope::pipeline
