// What int8 costs each block of a model, measured once by `zoetrope int8`, and the blocks that a budget of error
// allows. Results are kept in a file of the user's cache folder:
//   $XDG_CACHE_HOME/zoetrope/int8.json, else $HOME/.cache/zoetrope/int8.json
// They hold for the weights of one transformer on every CPU: all kernels of int8 give the same bits, and those of bf16
// differ by less than it rounds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace zoetrope::pipeline {

// Relative L2 distances of an expert's velocity to that of bf16, by the same inputs, at some timesteps.
struct Int8Errors {
  std::string weights;  // transformer_identity()
  std::string name;     // of the model, for people
  // Of attention_int8_limit, descending; empty where the CPU had no int8 for attention.
  std::vector<double> attention_limits = {};
  struct At {
    double timestep = 0;
    std::vector<double> blocks;          // what each adds in int8, as TransformerConfig::int8_blocks counts
    double all = 0;                      // of all blocks in int8
    double rounding = 0;                 // of any small change: what follows is rounded to bf16 otherwise
    std::vector<double> attention = {};  // of attention_dtype=int8, by attention_limits; 0 where it took no head
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
double predicted_error(const Int8Errors::At& at, const std::vector<int64_t>& blocks, AttentionLimit attention = {});

struct Int8Choice {
  std::vector<int64_t> blocks;  // ascending; empty where not even one fits
  double error = 0;             // predicted, the largest of the timesteps; of one block where none fits
};
// As many blocks as the budget allows at every timestep, those with the smallest errors. `attention`: its error is
// within the budget, too.
Int8Choice choose_int8_blocks(const Int8Errors& errors, double budget, AttentionLimit attention = {});
// Of attention in int8 alone, the largest of the timesteps; 0 where int8 takes no head at any of them.
double int8_attention_error(const Int8Errors& errors, size_t limit);

// "1-7,9,11-28", as the key int8_layers takes it.
std::string block_ranges(const std::vector<int64_t>& blocks);

class Int8Calibration {
 public:
  // Empty where there is no folder for it; then nothing is found or remembered.
  static std::filesystem::path default_file();

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
