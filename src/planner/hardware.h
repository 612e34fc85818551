// The machine a plan is made for, as plain figures: what its devices compute, hold and send to each other. Read from a
// YAML file of configs/hardware/ or from what `zoetrope calibrate` measured; docs/hardware.md says what each figure
// means and how to find it. Knows no model and measures nothing.
//
// Devices are numbered 0 … devices−1, and ranks follow that order. Link levels are nested, innermost first: level 0
// joins `members` devices to a group, level 1 joins `members` such groups, and so on; their product is `devices`. A
// message takes the lowest level that holds both ends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/bytes.h"

namespace zoetrope::planner {

// A fraction of the peak as a function of a size, through measured points, ascending in x. Between points 1/y is
// linear in 1/x, which is exact for y = y∞·x/(x + x₀); outside it is the nearest point's value, but below the first of
// several it goes on by the same law towards 0 (where the first two rise). Without points it is 1 everywhere.
class Curve {
 public:
  struct Point {
    double x = 0, y = 0;
  };
  Curve() = default;
  explicit Curve(std::vector<Point> points) : points_(std::move(points)) {}
  explicit Curve(double everywhere) : points_{{1, everywhere}} {}

  double at(double x) const;
  const std::vector<Point>& points() const { return points_; }
  void scale(double factor);  // every y, for what_if

 private:
  std::vector<Point> points_;
};

// What a device does with one dtype.
struct ComputeFigures {
  double peak = 0;       // FLOP/s (the file: TFLOP/s)
  Curve gemm;            // fraction of the peak by rows of the left operand on a device
  double int8_gain = 1;  // factor on `gemm` for matrices that are multiplied in int8
  Curve attention;       // online softmax, by rows of a query tile (block_q)
  // Factor on `attention` by the keys of a block: short blocks pay for their ends. Empty: 1.
  Curve attention_keys;
  double fixed_max_gain = 1;       // factor on `attention` with fixed-max softmax
  double int8_attention_gain = 1;  // factor on `attention` where it is multiplied in int8
  // Fraction of the peak in the VAE, of operations as direct convolutions have them: Winograd's algorithm takes 4 of 9.
  static constexpr double kMostConvolution = 9.0 / 4;
  double convolution = 0.5;
};

enum class LinkKind : uint8_t {
  kSwitch,  // every member has its own port(s) into a fabric that is never the bottleneck
  kMesh,    // members on a grid of `shape`, links between neighbours, no wrap; dimension-ordered routes
  kTorus,   // the same with wrap links
  kBus,     // one medium that all members share (memory of a host, a PCIe root)
};
constexpr bool is_grid(LinkKind kind) { return kind == LinkKind::kMesh || kind == LinkKind::kTorus; }

struct LinkLevel {
  std::string name;  // "die", "node", "cluster": what breakdowns and what_if call it
  int members = 1;
  LinkKind kind = LinkKind::kSwitch;
  std::vector<int> shape;   // of a mesh or torus, product = members; fastest first
  double bandwidth = 0;     // bytes/s one way of a port, a link, or the bus (the file: GB/s)
  int ports = 1;            // of one member into a switch, shared evenly by the devices below it
  double latency = 0;       // seconds a message (the file: microseconds)
  bool full_duplex = true;  // false: both directions share the bandwidth
  // Share of a transfer that goes on during compute without slowing it; the rest takes the devices' own time (a CPU
  // that copies, a kernel that occupies cores).
  double overlap = 1;
};

struct HardwareProfile {
  std::string name;         // of the file, without its ending
  std::string description;  // a line for people
  int devices = 1;
  Bytes device_memory;  // of a device; where devices share a host's memory its part
  ComputeFigures bf16, float32;
  double memory_bandwidth = 0;           // bytes/s of a device: passes over activations, weights of few rows
  double layer_overhead = 0;             // seconds a layer, whatever the size
  double token_seconds = 0;              // a token and layer on one device: norms, RoPE, modulation, copies …
  int64_t token_width = 5120;            // … at this model width; proportional to the width
  double merge_passes = 0;               // over a ring block's float32 output, a block; 0 with a running state
  double chunk_overlap = 0.55;           // what head chunks reach of the ideal overlap
  int64_t block_q = 0;                   // of attention where a plan does not say; 0: by the library
  std::vector<int64_t> block_q_choices;  // tiles worth trying; empty: block_q alone
  int64_t block_kv = 0;                  // keys that a block is rounded up to; 0: none
  double host_read = 0;                  // bytes/s from files into the memory of one host
  double disk_read = 0;                  // bytes/s from a host's disk, which its page cache does not have; 0: unknown
  int devices_per_host = 1;
  double price_per_hour = 0;  // of all devices, any currency; 0: unknown
  double model_error = 0.05;  // relative: times closer than this are ties
  std::vector<LinkLevel> links;
  // Of each device's compute, relative to these figures; empty: 1 each. Measured while a run goes on; no file has it.
  std::vector<double> speeds;
  double speed(int device) const { return speeds.empty() ? 1 : speeds[static_cast<size_t>(device)]; }

  // A figure that is neither measured nor published, nor fitted to such runs, and the ends of what it may well be, as
  // set_figure() takes them: "layer_overhead", "100", "2000"; "bf16.gemm", "x0.8", "x1.2".
  struct Assumption {
    std::string figure, low, high;
  };
  std::vector<Assumption> assumed;

  // Who measured: empty for published figures.
  struct Calibration {
    std::string cpu;                        // as the system names it
    int hosts = 0, ranks = 0, threads = 0;  // ranks of the job, threads of a rank
    std::string date;
  };
  std::optional<Calibration> calibration;

  const ComputeFigures& compute(int64_t element_bytes) const { return element_bytes == 2 ? bf16 : float32; }
};

// Throws Error where a figure is absurd, or figures contradict each other: "ORIGIN: links.node.bandwidth: …". Every
// profile that is read or changed here has passed it; one that a program has filled should.
void check_hardware(const HardwareProfile& profile, const std::string& origin);

// Reads and checks a profile. Throws Error naming file and key where a figure is missing, unknown or absurd. A version
// of a file that was parsed is remembered. Any thread.
HardwareProfile load_hardware(const std::filesystem::path& path);
// `name`: a path, or a name of configs/hardware/. Throws Error with the nearest names.
HardwareProfile find_hardware(const std::string& name, const std::filesystem::path& folder);
std::vector<std::string> hardware_names(const std::filesystem::path& folder);

// The file's text; load_hardware reads it back to the same figures. `remarks` become comments behind keys, which are
// named as what_if names them ("links.node.bandwidth").
std::string hardware_yaml(const HardwareProfile& profile,
                          const std::vector<std::pair<std::string, std::string>>& remarks = {});

// what_if: "links.node.bandwidth" = "900", in the file's units; "x1.5" multiplies. A figure that is set is assumed no
// longer. Throws Error for an unknown key (with the nearest) and an absurd value.
void set_figure(HardwareProfile& profile, const std::string& key, const std::string& value);
// Several, in this order; only what they make together has to be a machine: a switch becomes a mesh by `kind` and
// `shape`.
void set_figures(HardwareProfile& profile, const std::vector<std::pair<std::string, std::string>>& figures);
std::vector<std::string> figure_names(const HardwareProfile& profile);
// A figure as people read it, "2000 microseconds". Throws Error for an unknown key (with the nearest).
std::string figure_text(const HardwareProfile& profile, const std::string& key);

// The same machine with `devices` of its devices, whole inner groups first: 4 of 2 nodes of 8 are half a node. Where
// they are no whole number of groups it is the smallest machine of whole groups that holds them: 12 of 2 nodes of 8 are
// both nodes, 3 chips of a 2 x 2 mesh all four. Devices keep their numbers, levels their names, and a level that joins
// nothing any more has one member. The price goes with the devices. Throws Error for more than it has unless its
// outermost level is a switch, which takes more members.
HardwareProfile with_devices(const HardwareProfile& profile, int devices);

}  // namespace zoetrope::planner
