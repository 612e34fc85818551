// zoetrope plan: which configuration, how fast, how much memory, and why, before anything is loaded.

#include "cli/plan.h"

#include <algorithm>
#include <cstdio>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/print.h"
#include "cli/command.h"
#include "pipeline/model_files/config_folder.h"
#include "planner/published.h"
#include "trace/trace.h"

namespace zoetrope::cli {

using namespace plan_report;
namespace {

// All layers are alike: a few are enough to see the pattern.
constexpr int64_t kTracedLayers = 4;

// Of the largest number of ranks for which something fits.
void write_timeline(const PlanReport& report, const std::string& path) {
  const auto part = std::find_if(report.parts.rbegin(), report.parts.rend(),
                                 [](const PlanPart& p) { return p.ranking.best() != nullptr; });
  if (part == report.parts.rend()) {
    print("trace={} was not written: nothing fits.\n", path);
    return;
  }
  trace::Trace trace;
  planner::record_timeline(part->best_step, std::min(kTracedLayers, report.work.layers), trace);
  trace.write(path);
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  if (world != nullptr) fail("plan computes in one process; start it without mpirun");
  const PlanOptions options = parse_plan_options(arguments);
  if (options.published) {
    print("{}", planner::published_table(planner::compare_published(pipeline::config_folder() / "hardware")));
    return 0;
  }
  const PlanReport report = plan_answer(options);
  print("{}", plan_text(report, options.top));
  if (!options.json.empty()) write_file(options.json, plan_json(report));
  if (!options.report.empty()) write_file(options.report, plan_page(report));
  if (!options.trace.empty()) write_timeline(report, options.trace);
  for (const PlanPart& part : report.parts)
    if (part.ranking.best() != nullptr) return 0;
  fail("nothing fits into {} of a device; the least hardware that would: {}", report.parts.back().memory_limit.text(),
       report.parts.back().ranking.least_that_fits);
}

}  // namespace

const Command kPlan = {"plan",
                       "MODEL|CONFIG.yml hardware=PROFILE ranks=N[,N…] [key=value…]",
                       "Say which configuration to use on which hardware, how fast it is, and why",
                       plan_help,
                       nullptr,
                       run,
                       true};

}  // namespace zoetrope::cli
