#include "planner/hardware.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/options.h"
#include "base/words.h"
#include "planner/hardware_figures.h"

namespace zoetrope::planner {
namespace {

const char* grid_name(const LinkLevel& level) { return level.kind == LinkKind::kTorus ? "torus" : "mesh"; }

// Both stop above what is counted, so that absurd sizes stay absurd.
int64_t product(const std::vector<int>& shape) {
  int64_t cells = 1;
  for (const int extent : shape) cells = std::min(cells * extent, 2 * kMostDevices);
  return cells;
}

int64_t product(const std::vector<LinkLevel>& links) {
  int64_t devices = 1;
  for (const LinkLevel& level : links) devices = std::min(devices * level.members, 2 * kMostDevices);
  return devices;
}

void check_count(int64_t devices) {
  if (devices > kMostDevices) fail("more than {} devices are more than the planner counts", kMostDevices);
}

// What several figures of a level must make together.
void check_level(const LinkLevel& level, const std::string& where) {
  if (is_grid(level.kind)) {
    if (level.shape.empty())
      fail("{}.shape: is missing; a {} needs it, as [columns, rows, …] that multiply to its {} members", where,
           grid_name(level), level.members);
    if (product(level.shape) != level.members)
      fail("{}.shape: {} has {} cells, but the level has {} members; they must be the same", where,
           fmt::join(level.shape, " x "), product(level.shape), level.members);
  } else if (!level.shape.empty()) {
    fail("{}.shape: only a mesh or torus has one; drop it or change the kind", where);
  }
  if (level.kind != LinkKind::kSwitch && level.ports != 1)
    fail("{}.ports: only a switch has ports; drop it or change the kind", where);
}

void check_names(const std::vector<LinkLevel>& links, const std::string& origin) {
  for (const LinkLevel& level : links) {
    const bool legal = !level.name.empty() && std::all_of(level.name.begin(), level.name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    });
    if (!legal)
      fail("{}: links: '{}' is not a name of a level; letters, digits, '_' and '-' are (what_if keys hold it)", origin,
           level.name);
    if (std::count_if(links.begin(), links.end(), [&](const LinkLevel& l) { return l.name == level.name; }) > 1)
      fail("{}: links: two levels are named '{}'; every level needs a name of its own", origin, level.name);
  }
}

// A fraction of the peak that only shows when factors meet.
void check_efficiency(const ComputeFigures& compute, const std::string& where) {
  const auto most = [](const Curve& curve) {
    double y = 0;
    for (const Curve::Point& point : curve.points()) y = std::max(y, point.y);
    return curve.points().empty() ? 1.0 : y;
  };
  const double best = most(compute.attention) * most(compute.attention_keys) * std::max(1.0, compute.fixed_max_gain);
  if (best > 1)
    fail("{}.attention: with its factors (attention_keys, fixed_max_gain) it reaches {:.3g} of the peak; 1 is the most",
         where, best);
}

[[noreturn]] void unknown_figure(const HardwareProfile& profile, std::string_view key) {
  const std::vector<std::string> names = figure_names(profile);
  const std::string near = nearest_name(key, names);
  fail("hardware {} has no figure '{}'; {}", profile.name, key,
       near.empty() ? fmt::format("it has {}", fmt::join(names, ", ")) : fmt::format("did you mean '{}'?", near));
}

// After links have changed: what follows from the number of devices. Of the price each device has its part.
void follow_links(HardwareProfile& profile) {
  const int64_t devices = product(profile.links);
  check_count(devices);
  profile.price_per_hour *= static_cast<double>(devices) / profile.devices;
  profile.devices = static_cast<int>(devices);
  profile.devices_per_host = std::min(profile.devices_per_host, profile.devices);
}

// The corner of a grid that holds its first `cells` cells in the order of their numbers: whole rows before a second
// row, whole planes before a second plane, so that the cells keep their numbers. A torus keeps its wrap links where
// every dimension that is left is whole.
void cut_grid(LinkLevel& level, int cells) {
  int below = 1;
  bool whole = true;
  for (int& extent : level.shape) {
    const int left = std::min(extent, (cells + below - 1) / below);
    whole = whole && (left == extent || left == 1);
    below *= extent;
    extent = left;
  }
  if (!whole) level.kind = LinkKind::kMesh;
  level.members = static_cast<int>(product(level.shape));
}

}  // namespace

double Curve::at(double x) const {
  if (points_.empty()) return 1;
  // Sizes count rows: less than one is none, and costs nothing whatever the fraction. First of all, for below there
  // must be a point that is larger.
  x = std::max(1.0, x);
  if (x >= points_.back().x) return points_.back().y;
  if (points_.size() == 1) return points_.front().y;
  const auto next = std::find_if(points_.begin() + 1, points_.end(), [&](const Point& p) { return x < p.x; });
  const Point& high = *next;
  const Point& low = *(next - 1);
  const double slope = (1 / low.y - 1 / high.y) / (1 / low.x - 1 / high.x);
  // A curve that falls has no such law towards 0.
  if (x <= low.x && slope <= 0) return low.y;
  return 1 / (1 / high.y + slope * (1 / x - 1 / high.x));
}

void Curve::scale(double factor) {
  for (Point& point : points_) point.y *= factor;
}

void check_hardware(const HardwareProfile& profile, const std::string& origin) {
  check_names(profile.links, origin);
  for_each_part(profile, [&]<typename Part>(const Part& part, const std::string& prefix) {
    for (const Figure<Part>& figure : figures<Part>()) {
      try {
        check_figure(figure, part);
        // A reader has seen to it, a program that fills a profile may not have.
        if (figure.need == Need::kRequired && !figure.is_text() && print_figure(figure, part).empty())
          fail("is missing");
      } catch (const Error& error) {
        fail("{}: {}{}: {}", origin, prefix, figure.name, error.what());
      }
    }
  });
  for (const LinkLevel& level : profile.links) check_level(level, fmt::format("{}: links.{}", origin, level.name));
  if (product(profile.links) != profile.devices) {
    std::vector<std::string> members;
    for (const LinkLevel& level : profile.links) members.push_back(fmt::format("{} {}", level.name, level.members));
    fail("{}: devices: is {}, but the members of its link levels multiply to {} ({}); they must be the same", origin,
         profile.devices, product(profile.links),
         members.empty() ? "no levels" : fmt::format("{}", fmt::join(members, " x ")));
  }
  if (profile.devices_per_host > profile.devices)
    fail("{}: devices_per_host: {} are more than the {} devices there are", origin, profile.devices_per_host,
         profile.devices);
  check_efficiency(profile.bf16, origin + ": bf16");
  check_efficiency(profile.float32, origin + ": float32");
}

std::vector<std::string> figure_names(const HardwareProfile& profile) {
  std::vector<std::string> names;
  for_each_part(profile, [&]<typename Part>(const Part&, const std::string& prefix) {
    for (const Figure<Part>& figure : figures<Part>())
      if (!figure.is_text()) names.push_back(prefix + figure.name);
  });
  return names;
}

std::string figure_text(const HardwareProfile& profile, const std::string& key) {
  std::string text;
  bool found = false;
  for_each_part(profile, [&]<typename Part>(const Part& part, const std::string& prefix) {
    for (const Figure<Part>& figure : figures<Part>()) {
      if (prefix + figure.name != key) continue;
      found = true;
      const std::string unit = unit_text(figure.unit).file;
      text = print_figure(figure, part) + (unit.empty() ? "" : " " + unit);
    }
  });
  if (!found) unknown_figure(profile, key);
  return text;
}

namespace {

// The figure and what follows from it; whether the whole still makes sense is looked at when all are changed.
void change_figure(HardwareProfile& profile, std::string_view key, std::string_view value) {
  HardwareProfile changed = profile;
  bool found = false;
  try {
    for_each_part(changed, [&]<typename Part>(Part& part, const std::string& prefix) {
      for (const Figure<Part>& figure : figures<Part>()) {
        if (figure.is_text() || prefix + figure.name != key) continue;
        found = true;
        // "x1.5", but not the "x" of a shape.
        if (value.starts_with('x')) scale_figure(figure, part, read_number(value.substr(1)));
        else read_figure(figure, part, value);
        check_figure(figure, part);
      }
    });
  } catch (const Error& error) {
    fail("{}={}: {}", key, value, error.what());
  }
  if (!found) unknown_figure(profile, key);
  std::erase_if(changed.assumed, [&](const HardwareProfile::Assumption& assumed) { return assumed.figure == key; });
  try {
    if (key == "devices") {
      check_hardware(profile, profile.name);
      changed = with_devices(profile, changed.devices);
    } else {
      for (LinkLevel& level : changed.links) {
        const bool kind = key == "links." + level.name + ".kind", shape = key == "links." + level.name + ".shape";
        if (kind && !is_grid(level.kind)) level.shape.clear();
        if ((kind || shape) && is_grid(level.kind) && !level.shape.empty())
          level.members = static_cast<int>(product(level.shape));
      }
      if (product(changed.links) != changed.devices) follow_links(changed);
    }
  } catch (const Error& error) {
    fail("{}={}: {}", key, value, error.what());
  }
  profile = std::move(changed);
}

}  // namespace

void set_figures(HardwareProfile& profile, const std::vector<std::pair<std::string, std::string>>& figures) {
  HardwareProfile changed = profile;
  std::vector<std::string> said;
  for (const auto& [key, value] : figures) {
    change_figure(changed, key, value);
    said.push_back(key + "=" + value);
  }
  try {
    if (!figures.empty()) check_hardware(changed, profile.name);
  } catch (const Error& error) {
    fail("{}: {}", fmt::join(said, " "), error.what());
  }
  profile = std::move(changed);
}

void set_figure(HardwareProfile& profile, const std::string& key, const std::string& value) {
  set_figures(profile, {{key, value}});
}

HardwareProfile with_devices(const HardwareProfile& profile, int devices) {
  if (devices < 1) fail("{} devices make no machine; 1 is the least", devices);
  check_count(devices);
  HardwareProfile part = profile;
  if (devices > profile.devices) {
    const LinkLevel* outermost = profile.links.empty() ? nullptr : &profile.links.back();
    if (outermost == nullptr || outermost->kind != LinkKind::kSwitch) {
      fail("hardware {} has {}, not {}: {}; name a profile that has as many", profile.name,
           counted(profile.devices, "device"), devices,
           outermost == nullptr ? "it has no links"
                                : fmt::format("its outermost level '{}' is not a switch, which could take more members",
                                              outermost->name));
    }
  }
  int below = 1;  // devices of a group of the level below, as the whole machine has it
  for (LinkLevel& level : part.links) {
    const bool grows = &level == &part.links.back() && level.kind == LinkKind::kSwitch;
    const int groups = (devices + below - 1) / below;
    below *= level.members;
    if (is_grid(level.kind)) cut_grid(level, std::min(groups, level.members));
    else level.members = grows ? groups : std::min(groups, level.members);
  }
  follow_links(part);
  return part;
}

}  // namespace zoetrope::planner
