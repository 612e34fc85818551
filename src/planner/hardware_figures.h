// The table of a profile's figures: what each is called in the file, its unit, what it may be, whether it must be
// there, and what it means. Reading, checking, writing and what_if are made from it (hardware.cpp, hardware_yaml.cpp),
// so that a figure is added by one line here. Not for users of profiles: those include hardware.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "planner/hardware.h"

namespace zoetrope::planner {

enum class Unit : uint8_t { kNone, kTeraFlops, kGigabytes, kGigabytesPerSecond, kMicroseconds };
struct UnitText {
  const char* file;   // what the file's number counts
  const char* plain;  // and what the profile holds
  int exponent;       // power of ten from one to the other
};
UnitText unit_text(Unit unit);

inline constexpr int64_t kMostDevices = 1'000'000;

enum class Need : uint8_t { kRequired, kOptional };

// What a number may be, in the file's unit, ends included; of a curve its y, of a list each entry. `kZeroToo`: 0 is
// allowed below `low`, which then tells a figure in the wrong unit from a figure that is small.
struct Bounds {
  double low = 0, high = 0;
  enum class Zero : uint8_t { kAsBounds, kZeroToo } zero = Zero::kAsBounds;

  bool hold(double value) const { return (value >= low && value <= high) || (zero == Zero::kZeroToo && value == 0); }
};

// A field of one part of a profile: the whole, a dtype's figures, a link level, a calibration.
template <typename Part>
struct Figure {
  using Field =
      std::variant<double Part::*, int Part::*, int64_t Part::*, Bytes Part::*, bool Part::*, std::string Part::*,
                   LinkKind Part::*, Curve Part::*, std::vector<int> Part::*, std::vector<int64_t> Part::*>;
  const char* name;
  Field field;
  Unit unit;
  Bounds bounds;
  Need need;
  const char* help;

  bool is_text() const { return std::holds_alternative<std::string Part::*>(field); }
};

// In the order in which hardware_yaml() writes them.
template <typename Part>
const std::vector<Figure<Part>>& figures();
template <>
const std::vector<Figure<HardwareProfile>>& figures();
template <>
const std::vector<Figure<ComputeFigures>>& figures();
template <>
const std::vector<Figure<LinkLevel>>& figures();
template <>
const std::vector<Figure<HardwareProfile::Calibration>>& figures();

// Calls visit(part, prefix) for every part of a profile: "" for the whole, "bf16.", "float32.", "links.NAME.",
// "calibration.".
template <typename Profile, typename Visit>
void for_each_part(Profile& profile, Visit&& visit) {
  visit(profile, std::string());
  visit(profile.bf16, std::string("bf16."));
  visit(profile.float32, std::string("float32."));
  for (auto& level : profile.links) visit(level, "links." + level.name + ".");
  if (profile.calibration) visit(*profile.calibration, std::string("calibration."));
}

// The figure as the file has it; empty where it is left out (an empty curve, list or text). read_figure() takes it
// back to the same value, and throws Error without file and key.
template <typename Part>
std::string print_figure(const Figure<Part>& figure, const Part& part);
template <typename Part>
void read_figure(const Figure<Part>& figure, Part& part, std::string_view text);
// Throws Error, without file and key, where a number is not within the figure's bounds.
template <typename Part>
void check_figure(const Figure<Part>& figure, const Part& part);
// Every number of it times `factor`. Throws Error where it is not a number.
template <typename Part>
void scale_figure(const Figure<Part>& figure, Part& part, double factor);

// The table as Markdown, for docs/hardware.md.
std::string figures_markdown();

double read_number(std::string_view text,
                   int exponent = 0);  // a finite decimal number × 10^exponent, correctly rounded

}  // namespace zoetrope::planner
