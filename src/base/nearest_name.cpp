// The key that a mistyped word, or a word of another program, probably means. Declared in options.h.
#include <algorithm>

#include "base/options.h"

namespace zoetrope {
namespace {

// Insertions, deletions, substitutions, and swaps of neighbours (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> edits(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      size_t& least = edits[i][j];
      if (i == 0 || j == 0) {
        least = i + j;
        continue;
      }
      least =
          std::min({edits[i - 1][j] + 1, edits[i][j - 1] + 1, edits[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        least = std::min(least, edits[i - 2][j - 2] + 1);
    }
  }
  return edits[a.size()][b.size()];
}

// Keys and values as other programs (diffusers, ComfyUI, stable-diffusion.cpp, the original code of Wan) name them.
struct Synonym {
  std::string_view theirs;
  const char* ours;
};
constexpr Synonym kSynonyms[] = {
    {"steps", "num_inference_steps"},
    {"step", "num_inference_steps"},
    {"sample_steps", "num_inference_steps"},
    {"sampling_steps", "num_inference_steps"},
    {"frames", "num_frames"},
    {"frame_num", "num_frames"},
    {"video_frames", "num_frames"},
    {"cfg", "guidance_scale"},
    {"cfg_scale", "guidance_scale"},
    {"guidance", "guidance_scale"},
    {"sample_guide_scale", "guidance_scale"},
    {"neg", "negative_prompt"},
    {"negative", "negative_prompt"},
    {"n_prompt", "negative_prompt"},
    {"shift", "flow_shift"},
    {"sample_shift", "flow_shift"},
    {"sampler", "scheduler"},
    {"sampling_method", "scheduler"},
    {"sample_solver", "scheduler"},
    {"sampler_name", "scheduler"},
    {"solver", "scheduler"},
    {"euler", "flow_match_euler"},
    {"uni_pc", "unipc"},
    {"dpm++", "dpmpp"},
    {"dpmpp_2m", "dpmpp"},
    {"base_seed", "seed"},
    {"save_file", "output"},
    {"output", "out"},
    {"ckpt_dir", "model"},
};

}  // namespace

std::string dtype_spelling(std::string_view word) {
  if (word == "f32" || word == "fp32") return "float32";
  return std::string(word == "bfloat16" ? "bf16" : word);
}

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  for (const Synonym& synonym : kSynonyms) {
    if (word == synonym.theirs && std::find(candidates.begin(), candidates.end(), synonym.ours) != candidates.end())
      return synonym.ours;
  }
  std::string best;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    if (distance < least && distance <= std::max(word.size(), candidate.size()) / 3) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace zoetrope
