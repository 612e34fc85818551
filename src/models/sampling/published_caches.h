// What was published for step caches: MagCache's curves (maxdiffusion's configs, which took them from the authors) and
// TeaCache's polynomials (TeaCache4Wan2.1), each measured on one model. Plain data by the name of the model.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::sampling {

struct PublishedRatios {
  std::string_view model;          // as configs/ spells it
  std::span<const double> ratios;  // of MagCacheSettings
  double threshold;
};

struct PublishedCoefficients {
  std::string_view model;
  std::vector<double> embedding;   // without retention steps
  double embedding_threshold;      // the most cautious of those that were published
  std::vector<double> projection;  // with retention steps
  double projection_threshold;
};

// Null where there is none for that model.
const PublishedRatios* published_ratios(std::string_view model);
const PublishedCoefficients* published_coefficients(std::string_view model);

// The names of all, "a, b, c".
std::string models_with_ratios();
std::string models_with_coefficients();

}  // namespace zoetrope::sampling
