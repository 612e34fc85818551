// Runs that tools/soak.py asks for, one after the other in this process: a line of keys of generate, divided by tabs,
// is one run and is answered by one line: "done", "cancelled" or "refused: SENTENCE".
//
//   soak_cancel=N   cancels the run after N layers
//   soak_keep=WHAT  keeps a megabyte of memory, a descriptor or a thread after it, so that the tool's own test has
//                   something to find
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/words.h"
#include "pipeline/generate.h"

namespace zoetrope {
namespace {

constexpr std::string_view kCancel = "soak_cancel=", kKeep = "soak_keep=";

void keep(std::string_view what) {
  constexpr size_t kMegabyte = 1 << 20;
  static std::vector<std::vector<char>> kept;
  if (what == "memory") kept.emplace_back(kMegabyte, 'x');
  else if (what == "descriptor") static_cast<void>(open("/dev/null", O_RDONLY | O_CLOEXEC));
  else if (what == "thread") std::thread([] { pause(); }).detach();
  else fail("soak_keep={}: memory, descriptor or thread", what);
}

std::vector<std::string> words_of(const std::string& line) {
  const std::vector<std::string_view> words = split(line, '\t');
  return {words.begin(), words.end()};
}

void run(const std::string& line) {
  pipeline::GenerateOptions options;
  OptionSet set = describe_options(options);
  std::atomic<bool> cancelled = false;
  int64_t layers_left = -1;
  std::string kept;
  try {
    for (const std::string& word : words_of(line)) {
      if (word.starts_with(kCancel)) layers_left = std::stoll(word.substr(kCancel.size()));
      else if (word.starts_with(kKeep)) kept = word.substr(kKeep.size());
      else set.set_argument(word);
    }
    Callbacks callbacks;
    callbacks.layer = [&](int64_t, int64_t) {
      if (layers_left > 0 && --layers_left == 0) cancelled = true;
    };
    callbacks.cancelled = [&] { return cancelled.load(); };
    generate(options, callbacks);
    std::puts("done");
  } catch (const Error& error) {
    std::puts(cancelled ? "cancelled" : fmt::format("refused: {}", error.what()).c_str());
  }
  if (!kept.empty()) keep(kept);
  malloc_trim(0);  // what is measured now is in use
  std::fflush(stdout);
}

}  // namespace
}  // namespace zoetrope

int main() {
  for (std::string line; std::getline(std::cin, line);) zoetrope::run(line);
  std::fflush(stdout);
  _exit(0);  // threads that were kept on purpose are still there
}
