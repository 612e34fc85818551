// Profiles as files: reading, finding and writing them. What a file may have is the table of hardware_figures.h.
#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/options.h"
#include "base/yaml.h"
#include "planner/hardware.h"
#include "planner/hardware_figures.h"

namespace zoetrope::planner {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".yml";
// Keys that hold more keys.
constexpr const char* kSections[] = {"bf16", "float32", "links", "calibration", "assumed"};

// The text that read_figure() takes: a scalar, "[2, 2, 1]", "{4096: 0.411, 9472: 0.561}".
std::string node_text(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::vector<std::string> parts;
  const auto scalar = [](const YAML::Node& entry) {
    if (!entry.IsScalar()) fail("holds more than numbers");
    return entry.Scalar();
  };
  if (node.IsSequence()) {
    for (const auto& entry : node) parts.push_back(scalar(entry));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  }
  if (node.IsMap()) {
    for (const auto& entry : node) parts.push_back(scalar(entry.first) + ": " + scalar(entry.second));
    return fmt::format("{{{}}}", fmt::join(parts, ", "));
  }
  fail("has no value");
}

// Reads one mapping into one part of a profile.
template <typename Part>
class PartReader {
 public:
  // `prefix`: "bf16."; `sections`: keys that the caller reads.
  PartReader(const YAML::Node& node, std::string origin, std::string prefix, std::vector<std::string> sections = {})
      : node_(node), origin_(std::move(origin)), prefix_(std::move(prefix)), sections_(std::move(sections)) {
    if (!node_.IsMap())
      fail("{}: {} must hold `key: value` lines", origin_,
           prefix_.empty() ? "the file" : prefix_.substr(0, prefix_.size() - 1));
  }

  void read(Part& part) const {
    std::set<std::string> seen;
    for (const auto& entry : node_) {
      const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
      seen.insert(key);
      if (std::find(sections_.begin(), sections_.end(), key) != sections_.end()) continue;
      read_key(part, key, entry.second);
    }
    for (const Figure<Part>& figure : figures<Part>()) {
      if (figure.need == Need::kRequired && seen.count(figure.name) == 0) {
        const std::string unit = unit_text(figure.unit).file;
        fail("{}: {}{}: is missing; give it{} ({})", origin_, prefix_, figure.name, unit.empty() ? "" : " in " + unit,
             figure.help);
      }
    }
    for (const std::string& section : sections_)
      if (seen.count(section) == 0 && (section == "bf16" || section == "float32"))
        fail("{}: {}: is missing; give peak, gemm and attention of that dtype", origin_, section);
  }

 private:
  void read_key(Part& part, const std::string& key, const YAML::Node& value) const {
    const auto& table = figures<Part>();
    const auto figure =
        std::find_if(table.begin(), table.end(), [&](const Figure<Part>& known) { return key == known.name; });
    if (figure == table.end()) {
      std::vector<std::string> names = sections_;
      for (const Figure<Part>& known : table) names.emplace_back(known.name);
      const std::string near = nearest_name(key, names);
      fail(
          "{}: {}{}: is unknown; {}", origin_, prefix_, key,
          near.empty() ? fmt::format("known are {}", fmt::join(names, ", ")) : fmt::format("did you mean '{}'?", near));
    }
    try {
      read_figure(*figure, part, node_text(value));
    } catch (const Error& error) {
      fail("{}: {}{}: {}", origin_, prefix_, key, error.what());
    }
  }

  YAML::Node node_;
  std::string origin_, prefix_;
  std::vector<std::string> sections_;
};

std::vector<LinkLevel> read_links(const YAML::Node& node, const std::string& origin) {
  std::vector<LinkLevel> links;
  if (!node.IsDefined()) return links;
  if (!node.IsSequence()) fail("{}: links: must be a list of levels, innermost first", origin);
  for (const auto& entry : node) {
    const bool named = entry.IsMap() && entry["name"].IsDefined() && entry["name"].IsScalar();
    const std::string name = named ? entry["name"].Scalar() : fmt::to_string(links.size());
    LinkLevel level;
    PartReader<LinkLevel>(entry, origin, "links." + name + ".").read(level);
    links.push_back(std::move(level));
  }
  return links;
}

// A figure as numbers that can be compared one by one; a curve by samples. Empty where it has no order.
struct Numbers {
  std::vector<double> operator()(Bytes value) const { return {static_cast<double>(value.count())}; }
  std::vector<double> operator()(const Curve& curve) const {
    constexpr double kMost = 0x1p24;
    std::vector<double> samples;
    for (double x = 1; x <= kMost; x *= 2) samples.push_back(curve.points().empty() ? 1 : curve.at(x));
    return samples;
  }
  template <typename Value>
  std::vector<double> operator()(const Value& value) const {
    if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) return {static_cast<double>(value)};
    else return {};
  }
};

std::vector<double> numbers_of(const HardwareProfile& profile, const std::string& key) {
  std::vector<double> numbers;
  for_each_part(profile, [&]<typename Part>(const Part& part, const std::string& prefix) {
    for (const Figure<Part>& figure : figures<Part>())
      if (prefix + figure.name == key) numbers = std::visit([&](auto f) { return Numbers()(part.*f); }, figure.field);
  });
  return numbers;
}

bool all_at_most(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr double kRounding = 1e-9;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return x <= y + kRounding * std::abs(y); });
}

// Each with its two ends, which must be figures that the profile can have, on both sides of the one it has.
std::vector<HardwareProfile::Assumption> read_assumed(const YAML::Node& node, const HardwareProfile& profile,
                                                      const std::string& origin) {
  std::vector<HardwareProfile::Assumption> assumed;
  if (!node.IsDefined()) return assumed;
  if (!node.IsMap()) fail("{}: assumed: must hold `figure: [from, to]` lines", origin);
  for (const auto& entry : node) {
    const std::string figure = entry.first.IsScalar() ? entry.first.Scalar() : "";
    const YAML::Node& ends = entry.second;
    if (!ends.IsSequence() || ends.size() != 2 || !ends[0].IsScalar() || !ends[1].IsScalar())
      fail("{}: assumed.{}: must be the two ends of what it may be, [100, 2000] or [x0.8, x1.2]", origin, figure);
    assumed.push_back({figure, ends[0].Scalar(), ends[1].Scalar()});
    HardwareProfile low = profile, high = profile;
    try {
      set_figure(low, figure, assumed.back().low);
      set_figure(high, figure, assumed.back().high);
    } catch (const Error& error) {
      fail("{}: assumed: {}", origin, error.what());
    }
    const std::vector<double> lowest = numbers_of(low, figure), own = numbers_of(profile, figure),
                              highest = numbers_of(high, figure);
    if (!all_at_most(lowest, own) || !all_at_most(own, highest)) {
      fail("{}: assumed.{}: [{}, {}] must begin at or below the figure, which is {}, and end at or above it", origin,
           figure, assumed.back().low, assumed.back().high, figure_text(profile, figure));
    }
  }
  return assumed;
}

HardwareProfile read_profile(const YAML::Node& root, const std::string& origin) {
  HardwareProfile profile;
  PartReader<HardwareProfile>(root, origin, "", {std::begin(kSections), std::end(kSections)}).read(profile);
  PartReader<ComputeFigures>(root["bf16"], origin, "bf16.").read(profile.bf16);
  PartReader<ComputeFigures>(root["float32"], origin, "float32.").read(profile.float32);
  profile.links = read_links(root["links"], origin);
  if (root["calibration"].IsDefined()) {
    profile.calibration = HardwareProfile::Calibration();
    PartReader<HardwareProfile::Calibration>(root["calibration"], origin, "calibration.").read(*profile.calibration);
  }
  return profile;
}

std::string quoted_text(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

// Writes one part, a line a figure, its unit and remark behind it.
class Writer {
 public:
  explicit Writer(const std::vector<std::pair<std::string, std::string>>& remarks) : remarks_(remarks) {}

  void line(const std::string& text) { text_ += text + "\n"; }

  template <typename Part>
  void part(const Part& part, const std::string& prefix, const std::string& first_indent, const std::string& indent) {
    bool first = true;
    for (const Figure<Part>& figure : figures<Part>()) {
      std::string value = print_figure(figure, part);
      if (value.empty() && !(figure.is_text() && figure.need == Need::kRequired)) continue;
      if (figure.is_text()) value = quoted_text(value);
      std::string comment = unit_text(figure.unit).file;
      for (const auto& [key, remark] : remarks_)
        if (key == prefix + figure.name) comment += (comment.empty() ? "" : "; ") + remark;
      std::replace(comment.begin(), comment.end(), '\n', ' ');
      line(fmt::format("{}{}: {}{}{}", first ? first_indent : indent, figure.name, value, comment.empty() ? "" : "  # ",
                       comment));
      first = false;
    }
  }

  std::string take() { return std::move(text_); }

 private:
  const std::vector<std::pair<std::string, std::string>>& remarks_;
  std::string text_;
};

void check_remarks(const HardwareProfile& profile, const std::vector<std::pair<std::string, std::string>>& remarks) {
  std::set<std::string> keys;
  for_each_part(profile, [&]<typename Part>(const Part&, const std::string& prefix) {
    for (const Figure<Part>& figure : figures<Part>()) keys.insert(prefix + figure.name);
  });
  for (const auto& remark : remarks) ZT_CHECK(keys.count(remark.first) == 1, "a remark on '{}'", remark.first);
}

HardwareProfile parsed_hardware(const fs::path& path) {
  const std::string origin = path.string();
  const YAML::Node root = read_yaml(path);
  HardwareProfile profile;
  try {
    profile = read_profile(root, origin);
  } catch (const YAML::Exception& error) {
    fail("{} line {}: not YAML: {}", origin, error.mark.line + 1, error.msg);
  }
  profile.name = path.stem().string();
  check_hardware(profile, origin);
  profile.assumed = read_assumed(root["assumed"], profile, origin);
  return profile;
}

}  // namespace

// A server plans with the same file at every request, and parsing is a good part of that: it is parsed once a version.
HardwareProfile load_hardware(const fs::path& path) {
  static std::mutex mutex;
  static std::map<fs::path, std::pair<FileStamp, HardwareProfile>> known;
  if (is_folder(path)) fail("{}: is a folder; name a hardware profile in it", path.string());
  const FileStamp stamp = InputFile(path).stamp();
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(path); found != known.end() && found->second.first == stamp)
      return found->second.second;
  }
  wait_until_past(stamp);
  const HardwareProfile profile = parsed_hardware(path);
  if (stamp_of(path) != stamp) return profile;  // it was replaced meanwhile
  const std::lock_guard lock(mutex);
  known.insert_or_assign(path, std::pair(stamp, profile));
  return profile;
}

std::vector<std::string> hardware_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == kEnding) names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

HardwareProfile find_hardware(const std::string& name, const fs::path& folder) {
  const std::vector<std::string> names = hardware_names(folder);
  if (std::find(names.begin(), names.end(), name) != names.end()) return load_hardware(folder / (name + kEnding));
  const fs::path path(name);
  if (path.has_parent_path() || path.extension() == kEnding || is_there(path)) return load_hardware(path);
  const std::string known = names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  if (name.empty()) fail("a hardware profile needs a name; there are: {}", known);
  // No nearest name: another product is not what was meant, however alike the names are.
  fail("hardware '{}' is neither a file nor a profile of {}; there are: {}", name, folder.string(), known);
}

std::string hardware_yaml(const HardwareProfile& profile,
                          const std::vector<std::pair<std::string, std::string>>& remarks) {
  check_remarks(profile, remarks);
  Writer writer(remarks);
  writer.part(profile, "", "", "");
  writer.line("bf16:");
  writer.part(profile.bf16, "bf16.", "  ", "  ");
  writer.line("float32:");
  writer.part(profile.float32, "float32.", "  ", "  ");
  if (!profile.links.empty()) writer.line("links:  # innermost first");
  for (const LinkLevel& level : profile.links) writer.part(level, "links." + level.name + ".", "  - ", "    ");
  if (profile.calibration) {
    writer.line("calibration:");
    writer.part(*profile.calibration, "calibration.", "  ", "  ");
  }
  if (!profile.assumed.empty()) writer.line("assumed:");
  for (const HardwareProfile::Assumption& assumed : profile.assumed)
    writer.line(fmt::format("  {}: [{}, {}]", assumed.figure, assumed.low, assumed.high));
  return writer.take();
}

}  // namespace zoetrope::planner
