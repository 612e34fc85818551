#include "planner/hardware.h"
#include "text_changes.h"

namespace zoetrope::fuzz {
namespace {

void read(const std::string& bytes) {
  const planner::HardwareProfile profile = planner::load_hardware(write("input.yml", bytes));
  // What was read can be written and read again.
  planner::load_hardware(write("again.yml", planner::hardware_yaml(profile)));
}

}  // namespace

const Target kTarget{read, changed_lines, {": not YAML"}};

}  // namespace zoetrope::fuzz
