// The table `best:` of a configuration file: what the planner finds best for each number of ranks of a hardware
// profile. It is for people and for tools/best_tables.py, which writes and compares it; a run checks its form and
// ignores it.
#pragma once

#include <string_view>

namespace zoetrope::pipeline {

// "hardware:NAME,2:KEY=VALUE KEY=VALUE,4:…", as the mapping of a YAML file is given. Throws Error for another form and
// for keys that do not say how ranks are used.
void check_best_table(std::string_view text);

}  // namespace zoetrope::pipeline
