// What this machine computes and copies per second, and the file in the user's cache folder that stores it. One file
// per machine, so that machines can share the folder. first_use.h measures the figures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace zoetrope::machine {

// FLOP/s of all threads together.
struct DtypeRates {
  double peak = 0;                 // multiply-adds on registers
  double gemm = 0;                 // a layer's matrix multiplications …
  int64_t gemm_rows = 0;           // … with this many rows
  double int8_gain = 1;            // … and how many times as fast they are in int8; 1 for float32
  double attention = 0;            // one block with online softmax …
  int64_t attention_tokens = 0;    // … with this many queries and keys
  double fixed_max_gain = 1;       // … and how many times as fast it is with fixed-max softmax
  double int8_attention_gain = 1;  // … and in int8
  double convolution = 0;          // of the VAE
};

struct Figures {
  DtypeRates bf16, float32;
  double copy = 0;            // bytes/s in memory, read and written
  double host_read = 0;       // bytes/s from the page cache into packed weights
  double token_seconds = 0;   // per token and layer of width kLayerWidth, without matrix multiplications and attention
  double layer_overhead = 0;  // seconds per layer, independent of its size
  double core_share = 0;  // share of the cores' time that the threads had during the measurement; 1 on an idle machine
};

// Throws Error that names a figure which no machine has. On a busy one two rates whose quotient is a gain may be of
// moments that have nothing in common.
void check_figures(const Figures& figures);

// The better of each figure: other load can only make a machine look slower.
Figures best_of(const Figures& a, const Figures& b);

// What figures are valid for.
struct MachineKey {
  std::string cpu;      // brand, family, model and stepping
  int cores = 0;        // that this process may use
  std::string isa;      // the instruction sets that kernels use
  std::string version;  // of the library
  friend bool operator==(const MachineKey&, const MachineKey&) = default;
};
MachineKey this_machine();

struct Remembered {
  Figures figures;
  std::string date;      // of the last measurement
  int measurements = 0;  // how many measurements it combines
};

// zoetrope/machine-<hash of the key>.json in the user's cache folder; empty if there is none.
std::filesystem::path figures_path(const MachineKey& key);

// Empty if the file is missing, unreadable, damaged or about another machine.
std::optional<Remembered> recall(const std::filesystem::path& path, const MachineKey& key);
// All or nothing; creates the folder. Throws Error if that is not possible.
void remember(const std::filesystem::path& path, const MachineKey& key, const Remembered& remembered);

}  // namespace zoetrope::machine
