#include "bench/machine.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "zoetrope/version.h"

#include "base/words.h"
#include "bench/peak.h"
#include "device/thread_team.h"
#include "kernels/cpu_features.h"

namespace zoetrope::bench {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "48K L1d, 2048K L2, 32M L3" of the first core, as far as the system reports them.
std::string caches() {
  std::string text;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    const std::string level = first_line(folder + "level"), type = first_line(folder + "type");
    if (level.empty() || type == "Instruction") continue;
    const char* suffix = type == "Data" ? "d" : "";
    text += fmt::format("{}{} L{}{}", text.empty() ? "" : ", ", first_line(folder + "size"), level, suffix);
  }
  return text.empty() ? "unknown" : text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> describe_machine() {
  utsname system{};
  uname(&system);
  std::string isas;
  for (const Isa isa : all_isas()) {
    if (isa_available(isa)) isas += (isas.empty() ? "" : ", ") + std::string(isa_name(isa));
  }
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  return {{"CPU", kernels::cpu_model()},
          {"threads", fmt::format("{}", available_threads())},
          {"caches", caches()},
          {"memory", fmt::format("{:.1f} GiB", memory / (1 << 30))},
          {"instruction sets", isas},
          {"system", fmt::format("{} {}", system.sysname, system.release)},
          {"compiler", "g++ " __VERSION__},
          {"zoetrope", version()},
          {"measured", utc_now_text()}};
}

void forget_peak_resident() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  std::ofstream("/proc/self/clear_refs") << "5";
}

int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace zoetrope::bench
