#include "planner/hardware_figures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/options.h"
#include "base/words.h"

namespace zoetrope::planner {
namespace {

constexpr Bounds::Zero kZeroToo = Bounds::Zero::kZeroToo;

constexpr Bounds kFraction{1e-6, 1};
constexpr Bounds kConvolution{1e-6, ComputeFigures::kMostConvolution};
constexpr Bounds kShare{0, 1};
constexpr Bounds kGain{0.1, 10};
constexpr Bounds kPeak{1e-4, 1e5};                // TFLOP/s: a slow core … far beyond any chip
constexpr Bounds kMemory{0.01, 1e5};              // GB
constexpr Bounds kMemoryBandwidth{0.1, 1e5};      // GB/s
constexpr Bounds kLinkBandwidth{1e-4, 1e5};       // GB/s: 1 Mbit/s …
constexpr Bounds kHostRead{1e-3, 1e4};            // GB/s
constexpr Bounds kDiskRead{1e-3, 1e4, kZeroToo};  // GB/s
constexpr Bounds kLatency{1e-3, 1e6, kZeroToo};   // microseconds: no message takes less than a nanosecond
constexpr Bounds kOverhead{1e-2, 1e8, kZeroToo};
constexpr Bounds kTokenTime{1e-5, 1e6, kZeroToo};
constexpr Bounds kDevices{1, kMostDevices};
constexpr Bounds kTile{1, 1e9, kZeroToo};
constexpr Bounds kText{0, 0};

struct KindName {
  LinkKind kind;
  const char* name;
};
constexpr KindName kKinds[] = {
    {LinkKind::kSwitch, "switch"}, {LinkKind::kMesh, "mesh"}, {LinkKind::kTorus, "torus"}, {LinkKind::kBus, "bus"}};

// The text between the brackets, split at commas.
std::vector<std::string_view> entries(std::string_view text, char open, char close) {
  text = trimmed(text);
  if (text.size() >= 2 && text.front() == open && text.back() == close) text = text.substr(1, text.size() - 2);
  std::vector<std::string_view> parts = split_terminated(trimmed(text), ',');
  for (std::string_view& part : parts) part = trimmed(part);
  return parts;
}

// The shortest decimal text of `value` × 10^−exponent that read_number() takes back to `value`. The decimal point is
// moved in the text: dividing would round.
std::string print_number(double value, int exponent) {
  std::string text;
  for (int digits = 0; digits <= 16; ++digits) {
    text = fmt::format("{:.{}e}", value, digits);
    if (read_number(text) == value) break;
  }
  const size_t e = text.find('e');
  const int shifted = std::stoi(text.substr(e + 1)) - exponent;
  const bool negative = text.front() == '-';
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  constexpr int kLeastPlain = -7, kMostPlain = 15;
  const int count = static_cast<int>(digits.size());
  std::string out;
  if (value == 0) {
    out = "0";
  } else if (shifted < kLeastPlain || shifted > kMostPlain) {
    out = digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "") + fmt::format("e{}", shifted);
  } else if (shifted < 0) {
    out = "0." + std::string(static_cast<size_t>(-shifted - 1), '0') + digits;
  } else if (shifted + 1 >= count) {
    out = digits + std::string(static_cast<size_t>(shifted + 1 - count), '0');
  } else {
    out = digits.substr(0, static_cast<size_t>(shifted + 1)) + "." + digits.substr(static_cast<size_t>(shifted + 1));
  }
  return (negative ? "-" : "") + out;
}

template <typename Integer>
Integer read_integer(std::string_view text) {
  text = trimmed(text);
  const std::optional<int64_t> value = to_number<int64_t>(text);
  if (!value) fail("'{}' is not a whole number", text);
  if (*value > std::numeric_limits<Integer>::max() || *value < std::numeric_limits<Integer>::min())
    fail("{} is out of range; {} is the most that can be counted", *value, std::numeric_limits<Integer>::max());
  return static_cast<Integer>(*value);
}

bool read_flag(std::string_view text) {
  text = trimmed(text);
  if (text == "true" || text == "yes") return true;
  if (text == "false" || text == "no") return false;
  fail("'{}' is neither true nor false", text);
}

LinkKind read_kind(std::string_view text) {
  std::vector<std::string> names;
  for (const KindName& kind : kKinds) {
    if (trimmed(text) == kind.name) return kind.kind;
    names.emplace_back(kind.name);
  }
  fail("'{}' is not a kind of link; one of: {}", text, fmt::join(names, ", "));
}

const char* kind_name(LinkKind kind) {
  for (const KindName& known : kKinds)
    if (known.kind == kind) return known.name;
  ZT_CHECK(false, "link kind {}", static_cast<int>(kind));
}

// "0.78", or "{4096: 0.411, 9472: 0.561}".
Curve read_curve(std::string_view text) {
  text = trimmed(text);
  if (!text.starts_with('{')) return Curve(read_number(text));
  std::vector<Curve::Point> points;
  for (const std::string_view entry : entries(text, '{', '}')) {
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) fail("'{}' is not of the form size: value", entry);
    points.push_back({read_number(entry.substr(0, colon)), read_number(entry.substr(colon + 1))});
  }
  if (points.empty()) fail("a curve needs a point at least: a number, or {{size: value, …}}");
  return Curve(std::move(points));
}

std::string print_curve(const Curve& curve) {
  const auto& points = curve.points();
  if (points.empty()) return {};
  if (points.size() == 1) return print_number(points.front().y, 0);
  std::vector<std::string> parts;
  for (const Curve::Point& point : points) parts.push_back(print_number(point.x, 0) + ": " + print_number(point.y, 0));
  return fmt::format("{{{}}}", fmt::join(parts, ", "));
}

// "[2, 2, 1]", or "2x2x1" as shapes are often written.
template <typename Integer>
std::vector<Integer> read_list(std::string_view text) {
  std::vector<Integer> list;
  std::string commas(trimmed(text));
  if (!commas.starts_with('[')) std::replace(commas.begin(), commas.end(), 'x', ',');
  for (const std::string_view entry : entries(commas, '[', ']')) list.push_back(read_integer<Integer>(entry));
  return list;
}

void check_curve(const Curve& curve, const Bounds& bounds) {
  double before = 0;
  for (const Curve::Point& point : curve.points()) {
    if (!std::isfinite(point.x) || point.x <= 0) fail("{} is not a size; sizes are above 0", point.x);
    if (point.x == before) fail("the size {} is given twice", point.x);
    if (point.x < before) fail("sizes must ascend, but {} comes after {}", point.x, before);
    if (!bounds.hold(point.y)) {
      fail("{}{} is out of range; {} to {} is possible{}", point.y,
           curve.points().size() > 1 ? fmt::format(" at {}", point.x) : "", bounds.low, bounds.high,
           bounds.high == 1 ? " for a fraction of the peak" : "");
    }
    before = point.x;
  }
}

// `value` in the profile's unit.
void check_number(double value, const Bounds& bounds, Unit unit) {
  const UnitText text = unit_text(unit);
  const double shown = std::isfinite(value) ? read_number(print_number(value, text.exponent)) : value;
  if (bounds.hold(shown)) return;
  const std::string behind = *text.file != 0 ? fmt::format(" {}", text.file) : "";
  std::string hint;
  // The user may have written the plain unit.
  const double meant = std::isfinite(value) ? shown * std::pow(10.0, -text.exponent) : value;
  if (text.exponent != 0 && shown != 0 && bounds.hold(meant))
    hint = fmt::format("; if {:g} was in {}, write {:g}", shown, text.plain, meant);
  fail("{:g}{} is out of range; {}{:g} to {:g}{} is possible{}", shown, behind, bounds.zero == kZeroToo ? "0, or " : "",
       bounds.low, bounds.high, behind, hint);
}

}  // namespace

UnitText unit_text(Unit unit) {
  switch (unit) {
    case Unit::kTeraFlops:
      return {"TFLOP/s", "FLOP/s", 12};
    case Unit::kGigabytes:
      return {"GB", "bytes", 9};
    case Unit::kGigabytesPerSecond:
      return {"GB/s", "bytes/s", 9};
    case Unit::kMicroseconds:
      return {"microseconds", "seconds", -6};
    case Unit::kNone:
      break;
  }
  return {"", "", 0};
}

double read_number(std::string_view text, int exponent) {
  text = trimmed(text);
  // The exponent is added to the text's own, so that 89.1 GB/s is the double nearest to 89.1e9.
  const size_t e = std::min(text.find_first_of("eE"), text.size());
  std::optional<int> own = 0;
  if (e < text.size()) {
    std::string_view digits = text.substr(e + 1);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    own = to_number<int>(digits);
  }
  constexpr int kMostExponent = 400;
  std::optional<double> value;
  if (own && *own >= -kMostExponent && *own <= kMostExponent)
    value = to_number<double>(fmt::format("{}e{}", text.substr(0, e), *own + exponent));
  if (!value || !std::isfinite(*value)) fail("'{}' is not a finite number", text);
  return *value;
}

template <>
const std::vector<Figure<HardwareProfile>>& figures() {
  using P = HardwareProfile;
  static const std::vector<Figure<P>> table = {
      {"description", &P::description, Unit::kNone, kText, Need::kOptional, "a line for people"},
      {"devices", &P::devices, Unit::kNone, kDevices, Need::kRequired, "devices of the machine; a rank takes one"},
      {"memory", &P::device_memory, Unit::kGigabytes, kMemory, Need::kRequired,
       "per device; where devices share a host's memory, its part"},
      {"memory_bandwidth", &P::memory_bandwidth, Unit::kGigabytesPerSecond, kMemoryBandwidth, Need::kRequired,
       "per device: passes over activations, weights used for few rows"},
      {"layer_overhead", &P::layer_overhead, Unit::kMicroseconds, kOverhead, Need::kRequired, "fixed time per layer"},
      {"token_seconds", &P::token_seconds, Unit::kMicroseconds, kTokenTime, Need::kRequired,
       "per token and layer on one device, without matrix multiplications and attention: norms, RoPE, modulation, "
       "copies"},
      {"token_width",
       &P::token_width,
       Unit::kNone,
       {1, 1e6},
       Need::kOptional,
       "model width at which token_seconds was measured; the time is proportional to the width"},
      {"merge_passes",
       &P::merge_passes,
       Unit::kNone,
       {0, 1000},
       Need::kOptional,
       "passes over a ring block's float32 output to merge it; 0 with a running state"},
      {"chunk_overlap", &P::chunk_overlap, Unit::kNone, kShare, Need::kOptional,
       "share of the ideal overlap that head chunks reach"},
      {"block_q", &P::block_q, Unit::kNone, kTile, Need::kOptional,
       "rows of a query tile unless a plan sets them; 0: chosen by the library"},
      {"block_q_choices", &P::block_q_choices, Unit::kNone, kTile, Need::kOptional,
       "tiles worth trying; none: block_q alone"},
      {"block_kv", &P::block_kv, Unit::kNone, kTile, Need::kOptional, "keys that a block is rounded up to; 0: none"},
      {"host_read", &P::host_read, Unit::kGigabytesPerSecond, kHostRead, Need::kRequired,
       "from files into memory, per host"},
      {"disk_read", &P::disk_read, Unit::kGigabytesPerSecond, kDiskRead, Need::kOptional,
       "from a host's disk, of files that its page cache does not have; 0: unknown, then host_read is used"},
      {"devices_per_host", &P::devices_per_host, Unit::kNone, kDevices, Need::kRequired,
       "devices whose weights one host reads"},
      {"price_per_hour",
       &P::price_per_hour,
       Unit::kNone,
       {0, 1e9},
       Need::kOptional,
       "price of all devices per hour, in any currency; 0: unknown"},
      {"model_error", &P::model_error, Unit::kNone, kShare, Need::kOptional,
       "relative error of predictions: times closer than this are ties"},
  };
  return table;
}

template <>
const std::vector<Figure<ComputeFigures>>& figures() {
  using P = ComputeFigures;
  static const std::vector<Figure<P>> table = {
      {"peak", &P::peak, Unit::kTeraFlops, kPeak, Need::kRequired, "per device, dense"},
      {"gemm", &P::gemm, Unit::kNone, kFraction, Need::kRequired,
       "fraction of the peak in matrix multiplications, by rows per device"},
      {"int8_gain", &P::int8_gain, Unit::kNone, kGain, Need::kOptional,
       "factor on gemm for matrices that are multiplied in int8"},
      {"attention", &P::attention, Unit::kNone, kFraction, Need::kRequired,
       "fraction of the peak with online softmax, by rows of a query tile"},
      {"attention_keys",
       &P::attention_keys,
       Unit::kNone,
       {1e-3, 2},
       Need::kOptional,
       "factor on attention by the keys of a block; none: 1"},
      {"fixed_max_gain", &P::fixed_max_gain, Unit::kNone, kGain, Need::kOptional,
       "factor on attention with fixed-max softmax"},
      {"int8_attention_gain", &P::int8_attention_gain, Unit::kNone, kGain, Need::kOptional,
       "factor on attention that is multiplied in int8"},
      {"convolution", &P::convolution, Unit::kNone, kConvolution, Need::kOptional,
       "fraction of the peak in the VAE; by Winograd's algorithm above 1"},
  };
  return table;
}

template <>
const std::vector<Figure<LinkLevel>>& figures() {
  using P = LinkLevel;
  static const std::vector<Figure<P>> table = {
      {"name", &P::name, Unit::kNone, kText, Need::kRequired, "name of the level in breakdowns and what_if"},
      {"members", &P::members, Unit::kNone, kDevices, Need::kRequired,
       "groups of the level below (devices, at the innermost) that it joins"},
      {"kind", &P::kind, Unit::kNone, kText, Need::kRequired, "switch, mesh, torus or bus"},
      {"shape", &P::shape, Unit::kNone, kDevices, Need::kOptional,
       "sides of a mesh or torus, fastest dimension first; their product is members"},
      {"bandwidth", &P::bandwidth, Unit::kGigabytesPerSecond, kLinkBandwidth, Need::kRequired,
       "one way: per switch port, per link between neighbours, or of the whole bus"},
      {"ports",
       &P::ports,
       Unit::kNone,
       {1, 1024},
       Need::kOptional,
       "switch ports per member, shared evenly by the devices below it"},
      {"latency", &P::latency, Unit::kMicroseconds, kLatency, Need::kRequired, "per message; on a grid per hop"},
      {"full_duplex", &P::full_duplex, Unit::kNone, kText, Need::kOptional,
       "false: both directions share the bandwidth"},
      {"overlap", &P::overlap, Unit::kNone, kShare, Need::kOptional,
       "share of a transfer that does not slow down compute"},
  };
  return table;
}

template <>
const std::vector<Figure<HardwareProfile::Calibration>>& figures() {
  using P = HardwareProfile::Calibration;
  static const std::vector<Figure<P>> table = {
      {"cpu", &P::cpu, Unit::kNone, kText, Need::kRequired, "as the system names it"},
      {"hosts", &P::hosts, Unit::kNone, kDevices, Need::kRequired, "hosts of the measuring job"},
      {"ranks", &P::ranks, Unit::kNone, kDevices, Need::kRequired, "ranks of the measuring job"},
      {"threads", &P::threads, Unit::kNone, kDevices, Need::kRequired, "threads per rank"},
      {"date", &P::date, Unit::kNone, kText, Need::kRequired, "when it was measured"},
  };
  return table;
}

namespace {

// One visitor per operation, with an overload per type of field.
struct Printer {
  int exponent;
  std::string operator()(double value) const { return print_number(value, exponent); }
  std::string operator()(int value) const { return fmt::to_string(value); }
  std::string operator()(int64_t value) const { return fmt::to_string(value); }
  std::string operator()(Bytes value) const { return print_number(static_cast<double>(value.count()), exponent); }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(LinkKind value) const { return kind_name(value); }
  std::string operator()(const Curve& value) const { return print_curve(value); }
  template <typename Integer>
  std::string operator()(const std::vector<Integer>& value) const {
    return value.empty() ? "" : fmt::format("[{}]", fmt::join(value, ", "));
  }
};

struct Reader {
  std::string_view text;
  int exponent;
  void operator()(double& value) const { value = read_number(text, exponent); }
  void operator()(int& value) const { value = read_integer<int>(text); }
  void operator()(int64_t& value) const { value = read_integer<int64_t>(text); }
  void operator()(Bytes& value) const {
    const double bytes = read_number(text, exponent);
    if (bytes < 0) fail("{} is negative", text);
    constexpr double kMost = 9e18;  // what 64 bits count
    if (bytes > kMost) fail("{} is more than can be counted", text);
    value = Bytes(std::llround(bytes));
  }
  void operator()(bool& value) const { value = read_flag(text); }
  void operator()(std::string& value) const { value = text; }
  void operator()(LinkKind& value) const { value = read_kind(text); }
  void operator()(Curve& value) const { value = read_curve(text); }
  template <typename Integer>
  void operator()(std::vector<Integer>& value) const {
    value = read_list<Integer>(text);
  }
};

struct Checker {
  const Bounds& bounds;
  Unit unit;
  void operator()(double value) const { check_number(value, bounds, unit); }
  void operator()(int value) const { check_number(value, bounds, unit); }
  void operator()(int64_t value) const { check_number(static_cast<double>(value), bounds, unit); }
  void operator()(Bytes value) const { check_number(static_cast<double>(value.count()), bounds, unit); }
  void operator()(bool) const {}
  void operator()(const std::string&) const {}
  void operator()(LinkKind) const {}
  void operator()(const Curve& value) const { check_curve(value, bounds); }
  template <typename Integer>
  void operator()(const std::vector<Integer>& value) const {
    for (const Integer entry : value) check_number(static_cast<double>(entry), bounds, unit);
  }
};

struct Scaler {
  double factor;
  void operator()(double& value) const { value *= factor; }
  void operator()(int& value) const { value = static_cast<int>(std::min<int64_t>(scaled(value), INT32_MAX)); }
  void operator()(int64_t& value) const { value = scaled(value); }
  void operator()(Bytes& value) const { value = Bytes(scaled(value.count())); }
  void operator()(Curve& value) const { value.scale(factor); }
  template <typename Other>
  void operator()(Other&) const {
    fail("is not a number that could be multiplied; give it a value");
  }

  int64_t scaled(int64_t value) const {
    const double product = static_cast<double>(value) * factor;
    constexpr double kMost = 1e15;  // doubles count exactly up to here
    if (!(std::abs(product) <= kMost)) fail("{} times {:g} is out of range", value, factor);
    return std::llround(product);
  }
};

}  // namespace

template <typename Part>
std::string print_figure(const Figure<Part>& figure, const Part& part) {
  return std::visit([&](auto field) { return Printer{unit_text(figure.unit).exponent}(part.*field); }, figure.field);
}

template <typename Part>
void read_figure(const Figure<Part>& figure, Part& part, std::string_view text) {
  std::visit([&](auto field) { Reader{text, unit_text(figure.unit).exponent}(part.*field); }, figure.field);
}

template <typename Part>
void check_figure(const Figure<Part>& figure, const Part& part) {
  std::visit([&](auto field) { Checker{figure.bounds, figure.unit}(part.*field); }, figure.field);
}

template <typename Part>
void scale_figure(const Figure<Part>& figure, Part& part, double factor) {
  std::visit([&](auto field) { Scaler{factor}(part.*field); }, figure.field);
}

namespace {

template <typename Part>
std::string markdown_rows(const char* prefix) {
  std::string rows;
  for (const Figure<Part>& figure : figures<Part>()) {
    const Bounds& bounds = figure.bounds;
    const bool number = bounds.high > 0;
    const std::string values =
        number ? fmt::format("{}{:g} … {:g}", bounds.zero == kZeroToo ? "0, " : "", bounds.low, bounds.high) : "";
    rows += fmt::format("| `{}{}` | {} | {} | {} | {} |\n", prefix, figure.name, unit_text(figure.unit).file, values,
                        figure.need == Need::kRequired ? "yes" : "", figure.help);
  }
  return rows;
}

}  // namespace

std::string figures_markdown() {
  return "| key | unit | from … to | required | meaning |\n|---|---|---|---|---|\n" +
         markdown_rows<HardwareProfile>("") + markdown_rows<ComputeFigures>("bf16.") +
         markdown_rows<LinkLevel>("links.LEVEL.") + markdown_rows<HardwareProfile::Calibration>("calibration.");
}

#define ZT_FIGURES_OF(Part)                                                \
  template std::string print_figure(const Figure<Part>&, const Part&);     \
  template void read_figure(const Figure<Part>&, Part&, std::string_view); \
  template void check_figure(const Figure<Part>&, const Part&);            \
  template void scale_figure(const Figure<Part>&, Part&, double)

ZT_FIGURES_OF(HardwareProfile);
ZT_FIGURES_OF(ComputeFigures);
ZT_FIGURES_OF(LinkLevel);
ZT_FIGURES_OF(HardwareProfile::Calibration);

}  // namespace zoetrope::planner
