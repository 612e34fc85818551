// A YAML file of options, of every kind that there is.
#include "base/options.h"
#include "text_changes.h"

namespace zoetrope::fuzz {
namespace {

struct Fields {
  std::string prompt, dtype = "float32";
  int64_t rows = 0, columns = 0;
  int64_t steps = 50;
  std::optional<int64_t> seed;
  double guidance = 5;
  std::optional<double> shift;
  std::vector<double> sigmas;
  bool quiet = false;
};

void read(const std::string& bytes) {
  Fields fields;
  OptionSet options;
  options.text("prompt", fields.prompt, "")
      .choice("dtype", fields.dtype, {"float32", "bfloat16"}, "")
      .sizes("mesh_shape", {{"rows", &fields.rows}, {"columns", &fields.columns}}, "")
      .integer("num_inference_steps", fields.steps, {1, 1000}, "")
      .integer("seed", fields.seed, {0, INT64_MAX}, "")
      .number("guidance_scale", fields.guidance, {0, 100}, "")
      .number("flow_shift", fields.shift, {}, "")
      .numbers("sigmas", fields.sigmas, {0, 1}, "")
      .flag("quiet", fields.quiet, "")
      .alias("steps", "num_inference_steps")
      .unavailable("eta", {"0"}, "it is not built")
      .ignored({"run_name"});
  options.load_yaml(write("input.yml", bytes));
  options.values();
}

}  // namespace

const Target kTarget{read, changed_lines, {": not YAML"}};

}  // namespace zoetrope::fuzz
