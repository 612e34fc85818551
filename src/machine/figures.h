// What this machine computes and copies a second, and the file of the user's cache folder that remembers it, one file a
// machine: a folder that several machines share serves each of them. Measures nothing (that is first_use.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace zoetrope::machine {

// FLOP/s of all threads together.
struct DtypeRates {
  double peak = 0;               // multiply-adds on registers
  double gemm = 0;               // a layer's products …
  int64_t gemm_rows = 0;         // … of so many rows
  double attention = 0;          // one block with online softmax …
  int64_t attention_tokens = 0;  // … of so many queries and keys
  double convolution = 0;        // of the VAE
};

struct Figures {
  DtypeRates bf16, float32;
  double copy = 0;            // bytes/s in memory, read and written
  double host_read = 0;       // bytes/s from the page cache into packed weights
  double token_seconds = 0;   // a token and layer outside of products and attention, kLayerWidth wide
  double layer_overhead = 0;  // seconds a layer, whatever its size
  double core_share = 0;      // of the cores' time that the threads had while they measured: 1 on an idle machine
};

// The better of each figure: whatever else runs only ever makes a machine look slower.
Figures best_of(const Figures& a, const Figures& b);

// What figures belong to.
struct MachineKey {
  std::string cpu;      // brand, family, model and stepping
  int cores = 0;        // that this process may use
  std::string isa;      // the instruction sets that kernels use here
  std::string version;  // of the library, whose kernels they are
  friend bool operator==(const MachineKey&, const MachineKey&) = default;
};
MachineKey this_machine();

struct Remembered {
  Figures figures;
  std::string date;      // of the last measurement
  int measurements = 0;  // that went into it
};

// zoetrope/machine-<hash of the key>.json in the user's cache folder; empty where there is none.
std::filesystem::path figures_path(const MachineKey& key);

// Nothing where the file is not there, cannot be read, is damaged or speaks of another machine: then it is measured.
std::optional<Remembered> recall(const std::filesystem::path& path, const MachineKey& key);
// All or nothing; makes the folder. Throws Error where that is not possible.
void remember(const std::filesystem::path& path, const MachineKey& key, const Remembered& remembered);

}  // namespace zoetrope::machine
