// What the numbers were measured on, for the head of every report.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace zoetrope::bench {

// Name and value, for people: CPU, cores, caches, memory, instruction sets, system, compiler, version, time.
std::vector<std::pair<std::string, std::string>> describe_machine();

}  // namespace zoetrope::bench
