#include "pipeline/memory_report.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>

namespace zoetrope::pipeline {
namespace {

constexpr const char* kWhole = "whole";
constexpr int kNameColumn = 32;  // as in the timing summary

std::string gigabytes(int64_t bytes) { return fmt::format("{:>10.3f} GB", static_cast<double>(bytes) * 1e-9); }

}  // namespace

MemoryReport::MemoryReport(comm::Communicator& world, planner::MemoryPlan plan)
    : world_(world), plan_(std::move(plan)) {
  if (world.rank() == 0 || world.ranks_in_this_process() == 1) meter_ = std::make_unique<trace::ResidentMeter>();
}

void MemoryReport::end() {
  if (!meter_) return;
  meter_->end();
  ::malloc_trim(0);
}

void MemoryReport::begin(const char* component) {
  end();
  if (meter_) meter_->begin(component);
}

void MemoryReport::gather() {
  // Ranks of one process release what they share together; then rank 0 measures and returns the memory.
  if (world_.size() > 1) world_.barrier();
  end();
  if (world_.ranks_in_this_process() == world_.size()) return;
  largest_.clear();
  for (const trace::ResidentMeter::Peak& peak : meter_->peaks())
    largest_.emplace_back(peak.part, static_cast<int64_t>(world_.all_reduce_max(static_cast<double>(peak.bytes))));
}

std::vector<ComponentMemory> MemoryReport::finish() {
  end();
  if (!meter_) return {};
  int64_t most = 0;
  for (const trace::ResidentMeter::Peak& peak : meter_->peaks()) {
    found_.push_back({peak.part, peak.bytes, plan_.peak_of(peak.part).count()});
    most = std::max(most, peak.bytes);
  }
  int64_t planned = 0;
  for (const ComponentMemory& component : found_) planned = std::max(planned, component.planned_bytes);
  found_.push_back({kWhole, most, planned});
  return found_;
}

std::string MemoryReport::text() const {
  std::string text;
  const auto line = [&](int indent, const std::string& name, const ComponentMemory& memory) {
    text += fmt::format("{:{}}{:<{}}{}   planned {}", "", indent, name, kNameColumn - indent,
                        gigabytes(memory.peak_bytes), planner::Bytes(memory.planned_bytes).text());
    for (const auto& [part, bytes] : largest_) {
      if (part == memory.component)
        text += fmt::format("   largest of {} processes {}", world_.size(), planner::Bytes(bytes).text());
    }
    text += '\n';
  };
  if (found_.empty()) return text;
  const bool others = world_.ranks_in_this_process() < world_.size();
  line(0, others ? "Memory, peak resident (rank 0)" : "Memory, peak resident", found_.back());
  for (const ComponentMemory& component : found_) {
    if (component.component == kWhole) continue;
    line(2, component.component, component);
    for (const planner::MemoryPhase& phase : plan_.phases) {
      const bool peak = phase.component == component.component && phase.total() == plan_.peak_of(phase.component);
      if (!peak) continue;
      text += fmt::format("    planned for {}: {}\n", phase.name, phase.text());
      break;
    }
  }
  return text;
}

}  // namespace zoetrope::pipeline
