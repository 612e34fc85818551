// Step caches over ranks: with nothing to reuse a run is the run without a cache to the bit, with something to reuse N
// ranks reuse it in the same steps as one and come to the same latents; on threads and (same text, under mpirun) on
// processes, for every way of using the ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/project_folders.h"
#include "comm/rank_test.h"
#include "pipeline/run.h"
#include "pipeline/settings/dtype_word.h"
#include "tensor/relative_l2.h"

namespace zoetrope {
namespace {

// A cache and its settings: such that steps are reused here, and such that none is.
struct Cache {
  const char* name;
  void (*apply)(pipeline::GenerateOptions&);
  void (*apply_zero)(pipeline::GenerateOptions&);
  bool with_data_split = true;
};
constexpr Cache kCaches[] = {
    {"mag",
     [](pipeline::GenerateOptions& o) {
       o.cache = sampling::StepCacheKind::kMag;
       o.cache_ratios = "wan2.1_t2v_14b";
     },
     [](pipeline::GenerateOptions& o) { o.cache_threshold = 0; }},
    {"tea",
     [](pipeline::GenerateOptions& o) {
       o.cache = sampling::StepCacheKind::kTea;
       o.cache_coefficients = "1,0";  // the change itself
       o.cache_threshold = 2;
     },
     [](pipeline::GenerateOptions& o) { o.cache_threshold = 0; }},
    {"tea_retention",
     [](pipeline::GenerateOptions& o) {
       o.cache = sampling::StepCacheKind::kTea;
       o.cache_coefficients = "1,0";
       o.cache_threshold = 2;
       o.cache_retention_steps = true;
     },
     [](pipeline::GenerateOptions& o) { o.cache_threshold = 0; }},
    {"sen",
     [](pipeline::GenerateOptions& o) {
       o.cache = sampling::StepCacheKind::kSen;
       o.cache_threshold = 1;
     },
     [](pipeline::GenerateOptions& o) { o.cache_threshold = 0; }},
    {"cfg", [](pipeline::GenerateOptions& o) { o.cache = sampling::StepCacheKind::kCfg; },
     [](pipeline::GenerateOptions& o) { o.cache_interval = 1; }, false},
    {"drift",
     [](pipeline::GenerateOptions& o) {
       o.cache = sampling::StepCacheKind::kDrift;
       o.cache_threshold = 0.3;
     },
     [](pipeline::GenerateOptions& o) { o.cache_threshold = 0; }},
};

constexpr const char* kModels[] = {"wan21_t2v", "wan22_t2v"};  // one expert and two

struct Layout {
  int data, ulysses, ring;
  int ranks() const { return data * ulysses * ring; }
};
constexpr Layout kLayouts[] = {{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 1, 1}, {1, 1, 3},
                               {1, 4, 1}, {1, 2, 2}, {2, 2, 1}, {2, 1, 2}};

pipeline::GenerateOptions options_of(const char* model, const Layout& layout, const char* dtype) {
  pipeline::GenerateOptions options;
  options.model = fmt::format("{}/pipelines/{}", kGoldenFolder, model);
  options.prompt = "A red cat runs across the market at dawn.";
  options.negative_prompt = "grey";
  options.height = 48;
  options.width = 64;
  options.num_frames = 9;
  options.num_inference_steps = 15;
  options.guidance_scale = 4;
  options.seed = 3;
  options.dtype = pipeline::dtype_of(dtype);
  options.threads = 1;
  options.decode = false;
  options.data_parallelism = layout.data;
  options.strategy.ulysses_shards = layout.ulysses;
  return options;
}

struct OpenRun {
  explicit OpenRun(const pipeline::GenerateOptions& options) : model(options), run(model, {options}) {}
  pipeline::OpenModel model;
  pipeline::Run run;
};

// Runs with one set of options, shared by the ranks of this process as the program does it.
Video run(const pipeline::GenerateOptions& options, comm::Communicator& world) {
  static std::mutex mutex;
  static std::weak_ptr<OpenRun> open;
  std::shared_ptr<OpenRun> video;
  {
    const std::lock_guard lock(mutex);
    video = open.lock();
    if (!video) open = video = std::make_shared<OpenRun>(options);
  }
  Video result = std::move(video->run.run(world, {}, {}).front());
  world.barrier();  // so that the object is shared to the end
  video.reset();
  world.barrier();  // and the next run opens its own
  return result;
}

// One rank's, computed once a process.
const Video& alone(const std::string& key, const pipeline::GenerateOptions& options) {
  static std::mutex mutex;
  static std::map<std::string, Video> known;
  const std::lock_guard lock(mutex);
  Video& result = known[key];
  if (!result.latents) {
    const auto video = std::make_shared<OpenRun>(options);
    comm::run_ranks(1, [&](comm::Communicator& one) { result = std::move(video->run.run(one, {}, {}).front()); });
  }
  return result;
}

bool equal_bits(const Tensor& a, const Tensor& b) {
  return a.size() == b.size() && std::memcmp(a.data<float>(), b.data<float>(), a.view().bytes()) == 0;
}

void nothing_to_reuse_is_no_cache(const Cache& cache, const char* model, const Layout& layout,
                                  comm::Communicator& world) {
  for (const char* dtype : {"float32", "bf16"}) {
    pipeline::GenerateOptions without = options_of(model, layout, dtype);
    without.num_inference_steps = 6;
    pipeline::GenerateOptions with = without;
    cache.apply(with);
    cache.apply_zero(with);
    const Video plain = run(without, world), cached = run(with, world);
    EXPECT_TRUE(equal_bits(cached.latents, plain.latents)) << dtype;
    if (world.rank() == 0) {
      ASSERT_TRUE(cached.step_cache);
      EXPECT_EQ(cached.step_cache->reused, 0);
    }
    EXPECT_FALSE(plain.step_cache);
  }
}

constexpr double kFloat32 = 1e-5;

void ranks_reuse_what_one_reuses(const Cache& cache, const char* model, const Layout& layout,
                                 comm::Communicator& world) {
  pipeline::GenerateOptions options = options_of(model, layout, "float32"),
                            one = options_of(model, {1, 1, 1}, "float32");
  cache.apply(options);
  cache.apply(one);
  const Video& reference = alone(fmt::format("{} {}", cache.name, model), one);
  const Video ours = run(options, world);
  EXPECT_LE(relative_l2(ours.latents, reference.latents), kFloat32);
  if (world.rank() != 0) return;
  ASSERT_TRUE(ours.step_cache && reference.step_cache);
  EXPECT_EQ(ours.step_cache->pattern, reference.step_cache->pattern);
  EXPECT_EQ(ours.step_cache->reuse_error.has_value(), reference.step_cache->reuse_error.has_value());
  EXPECT_NEAR(ours.step_cache->reuse_error.value_or(0), reference.step_cache->reuse_error.value_or(0), kFloat32);
  EXPECT_GE(ours.step_cache->reused, 3) << ours.step_cache->pattern;
  EXPECT_LE(ours.step_cache->reused, 12) << ours.step_cache->pattern;
  fmt::print("{} {} n={} data={} U={} R={}: {}, {:.2g} off one rank\n", cache.name, model, world.size(), layout.data,
             layout.ulysses, layout.ring, ours.step_cache->pattern, relative_l2(ours.latents, reference.latents));
}

// What a compared run states is the distance to the run without a cache.
void comparison_is_with_the_uncached_run(const Cache& cache, const char* model, const Layout& layout,
                                         comm::Communicator& world) {
  const pipeline::GenerateOptions without = options_of(model, layout, "float32");
  pipeline::GenerateOptions with = without;
  cache.apply(with);
  with.cache_compare = true;
  const Video plain = run(without, world), cached = run(with, world);
  if (world.rank() != 0) return;
  ASSERT_TRUE(cached.step_cache && cached.step_cache->rel_l2);
  const double expected = relative_l2(cached.latents, plain.latents);
  EXPECT_GT(expected, 0);
  EXPECT_NEAR(*cached.step_cache->rel_l2, expected, 1e-12);
  EXPECT_GT(cached.step_cache->velocity_rel_l2.value_or(0), 0);
  EXPECT_NE(cached.timing.find("relative L2"), std::string::npos);
}

const bool kRegistered = [] {
  for (const Cache& cache : kCaches) {
    for (const char* model : kModels) {
      for (const Layout& layout : kLayouts) {
        if (layout.data > 1 && !cache.with_data_split) continue;
        const std::string name = fmt::format("{}_{}_n{}_data{}_U{}R{}", cache.name, model, layout.ranks(), layout.data,
                                             layout.ulysses, layout.ring);
        const auto add = [&](const char* suite, auto body) {
          comm::register_rank_test(
              suite, name, {layout.ranks()}, __FILE__, __LINE__,
              [&cache, model, &layout, body](comm::Communicator& world) { body(cache, model, layout, world); });
        };
        add("NothingToReuseIsNoCache", nothing_to_reuse_is_no_cache);
        add("RanksReuseWhatOneReuses", ranks_reuse_what_one_reuses);
        if (layout.ranks() <= 2) add("ComparisonIsWithTheUncachedRun", comparison_is_with_the_uncached_run);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace zoetrope
