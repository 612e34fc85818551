// zoetrope run: `generate` as a job of mpirun that is started again, on the ranks that are left, where one is lost.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/print.h"
#include "base/words.h"
#include "cli/command.h"
#include "cli/generate_words.h"
#include "cli/interrupt.h"
#include "pipeline/records/journal.h"
#include "pipeline/records/series_journal.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

struct Host {
  std::string name;
  int slots = 1;
};

struct Launch {
  std::optional<int64_t> ranks;
  std::vector<Host> hosts;  // empty: this one
  std::string mpirun_arguments;
  int64_t restarts = 10;
};

std::vector<Host> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  for (const std::string_view one : split_terminated(text, ',')) {
    const size_t colon = one.find(':');
    Host& host = hosts.emplace_back(Host{std::string(one.substr(0, colon))});
    if (colon != std::string_view::npos) host.slots = static_cast<int>(parse_integer(one.substr(colon + 1), {1, 4096}));
    if (host.name.empty()) fail("must be names of hosts, each with its ranks, as node1:2,node2:2");
  }
  return hosts;
}

std::string hosts_text(const std::vector<Host>& hosts) {
  std::vector<std::string> words;
  for (const Host& host : hosts) words.push_back(fmt::format("{}:{}", host.name, host.slots));
  return fmt::format("{}", fmt::join(words, ","));
}

OptionSet describe(Launch& launch) {
  OptionSet set;
  set.integer("ranks", launch.ranks, {1, 4096}, "processes to start; unset: those of hosts, or 1")
      .value<std::vector<Host>>("hosts", launch.hosts, "text", parse_hosts, hosts_text,
                                "hosts with the ranks of each, as node1:2,node2:2; unset: this one")
      .text("mpirun_arguments", launch.mpirun_arguments, "more words for mpirun, as --oversubscribe")
      .integer("restarts", launch.restarts, {0, 1000}, "how often a job that has lost a rank is started again at most");
  return set;
}

std::string help() {
  Launch launch;
  return fmt::format(
      "Every key of `zoetrope generate`, and:\n{}\n"
      "A rank is lost where its process or host ends or no longer answers. The job then goes on from its journal\n"
      "(journal=, or OUTPUT.journal) on the ranks that are left, and the planner decides again how to use them.\n\n"
      "Example:\n  zoetrope run ranks=4 hosts=node1:2,node2:2 MODEL prompt=\"a red cat\" output=cat.mp4\n",
      describe(launch).help());
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; (at = text.find_first_not_of(' ', at)) != std::string::npos;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

// Ranks that a job's messages say are lost. mpirun names the rank that ended first, and then ends the others; a rank
// that still runs sees those ended too. So its word counts only where mpirun names none, as where a host is gone. Of
// two ranks that end at once mpirun names one: the next start may lose the other.
class LostRanks {
 public:
  void look(const std::string& line) {
    static const std::regex dead(R"(rank (\d+) on \S+ is (?:dead|stalled))"), more(R"(; so are ranks ([\d, ]+))"),
        ended(R"(process rank (\d+) with PID \d+ on node \S+ exited on signal)"), number(R"(\d+)");
    std::smatch found;
    if (std::regex_search(line, found, ended)) named_by_mpirun_.insert(std::stoi(found[1]));
    if (std::regex_search(line, found, dead)) named_by_ranks_.insert(std::stoi(found[1]));
    if (!std::regex_search(line, found, more)) return;
    const std::string others = found[1];
    for (std::sregex_iterator at(others.begin(), others.end(), number), end; at != end; ++at)
      named_by_ranks_.insert(std::stoi(at->str()));
  }
  const std::set<int>& ranks() const { return named_by_mpirun_.empty() ? named_by_ranks_ : named_by_mpirun_; }

 private:
  std::set<int> named_by_mpirun_, named_by_ranks_;
};

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("run: no pipe can be made: {}", system_message(errno));
  return ends;
}

// mpirun, which ends its ranks when this process ends, also by kill -9.
pid_t start_mpirun(std::vector<std::string> words, int error_output) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const auto [failed, fails] = make_pipe();
  const Descriptor reader(failed);
  pid_t job = 0;
  {
    const Descriptor writer(fails);
    const pid_t launcher = ::getpid();
    job = ::fork();
    if (job < 0) fail("run: {} cannot be started: {}", words[0], system_message(errno));
    if (job == 0) {
      std::signal(SIGTERM, SIG_DFL);  // not to be caught before mpirun is there
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (::getppid() != launcher) ::_exit(EXIT_FAILURE);
      if (::dup2(error_output, STDERR_FILENO) >= 0) ::execvp(arguments[0], arguments.data());
      const int code = errno;
      static_cast<void>(!::write(writer.value(), &code, sizeof code));
      ::_exit(EXIT_FAILURE);
    }
  }
  int code = 0;  // stays where mpirun was started, which closes the pipe
  while (::read(reader.value(), &code, sizeof code) < 0 && errno == EINTR) {
  }
  if (code == 0) return job;
  ::waitpid(job, nullptr, 0);
  fail("run: {} cannot be started: {}; install Open MPI", words[0], system_message(code));
}

// mpirun passes USR1 and USR2 on to its ranks, which stop at their next safe point. By TERM it ends them in a second.
int signal_for_mpirun() {
  const int number = interrupting_signal();
  return number == SIGUSR1 || number == SIGUSR2 ? number : SIGTERM;
}

using Clock = std::chrono::steady_clock;

// A terminal sends Ctrl-C and its own end to mpirun too, which at a second signal ends without waiting for its ranks.
bool is_of_terminal(int number) { return number == SIGINT || number == SIGHUP || number == SIGQUIT; }

// A running mpirun, whose standard error is read here and passed on.
struct Ended {
  int code = 0;
  std::string how;
  std::set<int> lost;
  bool gave_reason = false, named_resume = false;  // the ranks
  bool was_noted = false;                          // at some time
};

Ended run_job(const std::vector<std::string>& words, const fs::path& journal) {
  const auto [from, to] = make_pipe();
  const Descriptor reader(from);
  pid_t job = 0;
  {
    const Descriptor writer(to);
    job = start_mpirun(words, writer.value());
  }
  LostRanks lost;
  Ended ended;
  std::string lines;
  bool forwarded = false;
  Clock::time_point latest;
  for (char text[4096];;) {
    constexpr auto kPatience = std::chrono::seconds(3);
    if (!interrupted()) latest = Clock::now() + kPatience;
    else if (!forwarded && (!is_of_terminal(interrupting_signal()) || Clock::now() >= latest)) {
      forwarded = true;
      ::kill(job, signal_for_mpirun());
    }
    ended.was_noted = ended.was_noted || pipeline::is_noted(journal);
    constexpr int kWait = 200;  // milliseconds
    pollfd ready{reader.value(), POLLIN, 0};
    if (::poll(&ready, 1, kWait) <= 0) continue;
    const ssize_t count = ::read(reader.value(), text, sizeof text);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    const std::string_view part(text, static_cast<size_t>(count));
    print_error("{}", part);
    lines += part;
    for (size_t end; (end = lines.find('\n')) != std::string::npos; lines.erase(0, end + 1)) {
      const std::string line = lines.substr(0, end);
      lost.look(line);
      ended.gave_reason = ended.gave_reason || line.find("zoetrope: ") != std::string::npos;
      ended.named_resume = ended.named_resume || line.find("resume=") != std::string::npos;
    }
  }
  int status = 0;
  while (::waitpid(job, &status, 0) < 0 && errno == EINTR) {
  }
  const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  ended.code = number > 0 ? 128 + number : WEXITSTATUS(status);
  ended.how = number > 0 ? fmt::format("was ended by signal {} ({})", number, ::strsignal(number))
                         : fmt::format("ended with code {}", ended.code);
  ended.lost = lost.ranks();
  return ended;
}

// mpirun fills one host after another.
void remove_ranks(const std::set<int>& lost, std::vector<Host>& hosts) {
  std::vector<size_t> host_of;
  for (size_t h = 0; h < hosts.size(); ++h) host_of.insert(host_of.end(), static_cast<size_t>(hosts[h].slots), h);
  for (const int rank : lost)
    if (static_cast<size_t>(rank) < host_of.size()) --hosts[host_of[static_cast<size_t>(rank)]].slots;
  std::erase_if(hosts, [](const Host& host) { return host.slots == 0; });
}

std::vector<std::string> job_words(const Launch& launch, int64_t ranks, const std::vector<Host>& hosts,
                                   const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"mpirun", "-n", fmt::to_string(ranks)};
  if (!hosts.empty()) words.insert(words.end(), {"--host", hosts_text(hosts)});
  // Left alone, mpirun binds each of one or two ranks to a single core.
  if (launch.mpirun_arguments.find("--bind-to") == std::string::npos &&
      launch.mpirun_arguments.find("--map-by") == std::string::npos)
    words.insert(words.end(), {"--bind-to", "none"});
  const std::vector<std::string> more = words_of(launch.mpirun_arguments);
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), {own_program().string(), "generate"});
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

std::string how_to_go_on(const fs::path& journal, bool begun) {
  return begun ? fmt::format("resume={} goes on", journal.string()) : std::string("no step is noted");
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  if (world != nullptr) fail("run: starts mpirun itself; call it without mpirun, or call `zoetrope generate` under it");
  Launch launch;
  OptionSet own = describe(launch);
  std::vector<std::string> words = take_own_words(arguments, own);
  const bool names_journal = std::any_of(
      words.begin(), words.end(), [](const std::string& word) { return word.substr(0, word.find('=')) == "journal"; });
  pipeline::RunSettings settings;
  OptionSet set = pipeline::describe(settings);
  parse_generate_words(words, settings.run, set);
  std::vector<std::string> planned_anew;  // where fewer ranks are left
  for (const auto& [key, value] : set.settings())
    if (!set.origin(key).empty() && pipeline::says_how_ranks_are_used(key)) planned_anew.push_back(key);
  const bool resumes = !settings.run.resume.empty();
  const fs::path journal = resumes ? fs::path(settings.run.resume) : pipeline::journal_folder(settings.run);
  if (journal.empty())
    fail("journal={}: a job that is started again goes on from a journal; name its folder", settings.run.journal);
  if (!resumes && pipeline::is_noted(journal)) {
    fail("run: journal {} holds a run that did not end; resume={} goes on with it, removing the folder gives it up",
         journal.string(), journal.string());
  }
  // One that a journal holds is left to the ranks.
  if (!settings.run.grid.empty() && set.origin("grid") != (journal / pipeline::kSeriesSettings).string())
    fail("grid={}: a job that is started again does not have the frames of all videos; leave it out",
         settings.run.grid);
  if (!resumes && !names_journal) words.push_back(fmt::format("journal={}", journal.string()));
  int64_t ranks = 0;
  for (const Host& host : launch.hosts) ranks += host.slots;
  if (launch.ranks && ranks > 0 && *launch.ranks != ranks)
    fail("ranks={}: hosts={} has {}; leave out ranks, or give as many", *launch.ranks, hosts_text(launch.hosts), ranks);
  if (ranks == 0) ranks = launch.ranks.value_or(1);
  std::vector<Host> hosts = launch.hosts;
  stop_at_safe_points();
  for (int64_t restart = 0;; ++restart) {
    const Ended ended = run_job(job_words(launch, ranks, hosts, words), journal);
    if (ended.code == 0) return 0;
    const bool begun = pipeline::is_noted(journal);
    if (ended.was_noted && !begun) return ended.code;  // the videos are complete
    if (ended.lost.empty() || interrupted()) {
      if (!ended.gave_reason) fail("run: mpirun {}; {}", ended.how, how_to_go_on(journal, begun));
      if (begun && !ended.named_resume) print_error("{}\n", pipeline::resume_note(journal.string()));
      return ended.code;
    }
    ranks -= static_cast<int64_t>(ended.lost.size());
    const std::string lost =
        fmt::format("{} {}", ended.lost.size() == 1 ? "rank" : "ranks", fmt::join(ended.lost, ", "));
    if (ranks < 1) fail("run: the job has lost {}, and no rank is left; {}", lost, how_to_go_on(journal, begun));
    if (restart == launch.restarts)
      fail("run: the job has lost {}, and was started again {} times; {}", lost, restart, how_to_go_on(journal, begun));
    remove_ranks(ended.lost, hosts);
    if (begun && !resumes)
      words = {fmt::format("resume={}", journal.string()), fmt::format("summary={}", settings.summary)};
    else
      for (const std::string& key : planned_anew) words.push_back(key + "=" + kDefaultValue);
    print_error("Lost {}: {} on {}{}\n", lost,
                begun ? fmt::format("goes on from {}", journal.string()) : "begins again", counted(ranks, "rank"),
                planned_anew.empty() ? "" : fmt::format(", without {}", fmt::join(planned_anew, ", ")));
    planned_anew.clear();
  }
}

}  // namespace

const Command kRun = {"run",
                      "CONFIG.yml|MODEL_DIR key=value…",
                      "Generate as a job of mpirun that survives lost ranks",
                      help,
                      nullptr,
                      run,
                      true};

}  // namespace zoetrope::cli
