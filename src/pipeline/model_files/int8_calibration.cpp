#include "pipeline/model_files/int8_calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "zoetrope/attention.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "base/json.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kFormatKey = "zoetrope_int8";
constexpr int64_t kFormat = 5;

double ratio(double error, double norm) {
  if (error == 0) return 0;
  return norm > 0 ? std::sqrt(error / norm) : std::numeric_limits<double>::infinity();
}

nlohmann::json to_json(const BranchNorms& norms) {
  return {{"conditional", norms.conditional}, {"unconditional", norms.unconditional}, {"product", norms.product}};
}

nlohmann::json to_json(const std::vector<BranchNorms>& all) {
  nlohmann::json list = nlohmann::json::array();
  for (const BranchNorms& norms : all) list.push_back(to_json(norms));
  return list;
}

nlohmann::json to_json(const Int8Errors& errors) {
  nlohmann::json steps = nlohmann::json::array();
  for (const Int8Errors::At& at : errors.at) {
    steps.push_back({{"timestep", at.timestep},
                     {"velocity", to_json(at.velocity)},
                     {"blocks", to_json(at.blocks)},
                     {"all", to_json(at.all)},
                     {"rounding", to_json(at.rounding)},
                     {"attention", to_json(at.attention)}});
  }
  return {{"weights", errors.weights},
          {"name", errors.name},
          {"guidance", errors.guidance},
          {"attention_limits", errors.attention_limits},
          {"errors", steps}};
}

BranchNorms parse_norms(const JsonObject& json) {
  const BranchNorms norms{json.get<double>("conditional"), json.get<double>("unconditional"),
                          json.get<double>("product")};
  constexpr double kRounded = 1 + 1e-6;  // the product of errors that are in proportion
  const double most = std::sqrt(norms.conditional * norms.unconditional) * kRounded;
  if (!(norms.conditional >= 0 && norms.unconditional >= 0 && std::abs(norms.product) <= most && std::isfinite(most)))
    fail("{}: {}, {} and {} are not two squared norms and their product", json.path(), norms.conditional,
         norms.unconditional, norms.product);
  return norms;
}

std::vector<BranchNorms> parse_all_norms(const std::vector<JsonObject>& objects) {
  std::vector<BranchNorms> all;
  std::ranges::transform(objects, std::back_inserter(all), parse_norms);
  return all;
}

Int8Errors parse_errors(const JsonObject& json) {
  Int8Errors errors{json.get<std::string>("weights"), json.get<std::string>("name"), json.get<double>("guidance"),
                    json.get<std::vector<double>>("attention_limits")};
  for (size_t i = 0; i < errors.attention_limits.size(); ++i) {
    const double limit = errors.attention_limits[i];
    if (!(limit > 0 && limit <= attention::kInt8Limit))
      fail("{}: attention_limits has {}; it must be above 0 and at most {}", json.path(), limit, attention::kInt8Limit);
    if (i > 0 && limit >= errors.attention_limits[i - 1])
      fail("{}: attention_limits has {} after {}; each must be below the one before", json.path(), limit,
           errors.attention_limits[i - 1]);
  }
  for (const JsonObject& step : json.objects("errors")) {
    const auto norms = [&](const char* key) { return parse_norms(step.object(key)); };
    Int8Errors::At at{step.get<double>("timestep"),
                      norms("velocity"),
                      parse_all_norms(step.objects("blocks")),
                      norms("all"),
                      norms("rounding"),
                      parse_all_norms(step.objects("attention"))};
    if (at.velocity.conditional == 0) fail("{}: has a velocity of zeros", step.path());
    if (at.blocks.empty() || (!errors.at.empty() && at.blocks.size() != errors.at.front().blocks.size()))
      fail("{}: has errors of {} blocks", step.path(), at.blocks.size());
    if (at.attention.size() != errors.attention_limits.size())
      fail("{}: has errors of attention at {} limits", step.path(), at.attention.size());
    errors.at.push_back(std::move(at));
  }
  if (errors.at.empty()) fail("{}: has no errors", json.path());
  return errors;
}

}  // namespace

double BranchNorms::guided(double guidance) const {
  const double of_unconditional = guidance - 1;
  const double sum = guidance * guidance * conditional + of_unconditional * of_unconditional * unconditional -
                     2 * guidance * of_unconditional * product;
  return std::max(sum, 0.0);
}

double Int8Errors::At::relative(const BranchNorms& error, double guidance) const {
  return ratio(error.guided(guidance), velocity.guided(guidance));
}

double predicted_error(const Int8Errors::At& at, double guidance, const std::vector<int64_t>& blocks,
                       AttentionLimit attention) {
  const double attended = attention ? at.attention.at(*attention).guided(guidance) : 0;
  if (blocks.empty() && attended == 0) return 0;
  double added = 0, sum = 0;
  for (const int64_t block : blocks) added += at.blocks.at(static_cast<size_t>(block)).guided(guidance);
  for (const BranchNorms& block : at.blocks) sum += block.guided(guidance);
  const double rounding = at.rounding.guided(guidance);
  const double share = sum > 0 ? std::max(at.all.guided(guidance) - rounding, 0.0) / sum : 0;
  return ratio(rounding + share * added + std::max(attended - rounding, 0.0), at.velocity.guided(guidance));
}

double predicted_error(const Int8Errors& errors, double guidance, const std::vector<int64_t>& blocks,
                       AttentionLimit attention) {
  double error = 0;
  for (const Int8Errors::At& at : errors.at) error = std::max(error, predicted_error(at, guidance, blocks, attention));
  return error;
}

Int8Choice choose_int8_blocks(const Int8Errors& errors, double guidance, double budget, AttentionLimit attention) {
  std::vector<int64_t> order(static_cast<size_t>(errors.block_count()));
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> alone;
  for (const int64_t block : order) alone.push_back(predicted_error(errors, guidance, {block}, attention));
  std::ranges::stable_sort(order, {}, [&](int64_t block) { return alone[static_cast<size_t>(block)]; });
  Int8Choice choice;
  for (const int64_t block : order) {
    std::vector<int64_t> more = choice.blocks;
    more.insert(std::ranges::upper_bound(more, block), block);
    const double error = predicted_error(errors, guidance, more, attention);
    if (!(error <= budget)) {
      if (choice.blocks.empty()) choice.error = error;
      break;
    }
    choice = {std::move(more), error};
  }
  return choice;
}

std::string at_least(double error) {
  if (!(error > 0 && std::isfinite(error))) return fmt::to_string(error);
  const double unit = std::pow(10, std::floor(std::log10(error)) - 2);
  return fmt::format("{:.3g}", std::ceil(error / unit) * unit);
}

std::string guidance_text(double guidance) {
  return guidance == 1 ? "without guidance" : fmt::format("with guidance {:g}", guidance);
}

std::string block_ranges(const std::vector<int64_t>& blocks) {
  std::string text;
  for (size_t i = 0; i < blocks.size();) {
    size_t last = i;
    while (last + 1 < blocks.size() && blocks[last + 1] == blocks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", blocks[i]);
    if (last > i) text += fmt::format("-{}", blocks[last]);
    i = last + 1;
  }
  return text;
}

std::filesystem::path Int8Calibration::default_file() { return in_user_cache("int8.json"); }

std::vector<Int8Errors> Int8Calibration::entries() const {
  std::vector<Int8Errors> result;
  if (file_.empty() || !is_there(file_)) return result;
  int64_t format = 0;
  try {
    const std::string text = read_file(file_, kMaxTextBytes, InputFile::Kind::kCache);
    const JsonObject document = JsonObject::parse(text, file_.string());
    format = document.get<int64_t>(kFormatKey);
    if (format == kFormat)
      for (const JsonObject& entry : document.objects("transformers")) result.push_back(parse_errors(entry));
  } catch (const Error& broken) {
    fail("{}; `zoetrope int8` cannot have written this: name another file, or delete it if it was one", broken.what());
  }
  // An older version's is left alone until it is replaced.
  if (format > kFormat)
    fail("{}: is of a newer version of zoetrope; use that, or name another file as int8_calibration=", file_.string());
  return result;
}

std::optional<Int8Errors> Int8Calibration::find(const std::string& weights) const {
  for (Int8Errors& errors : entries())
    if (errors.weights == weights) return std::move(errors);
  return std::nullopt;
}

void Int8Calibration::require_writable() const {
  if (file_.empty())
    fail(
        "int8 errors cannot be stored: neither XDG_CACHE_HOME nor HOME names a folder; name a file as "
        "int8_calibration=");
  entries();
  make_parent_folders(file_);
  check_writable(file_);
}

void Int8Calibration::remember(const Int8Errors& errors) const {
  std::vector<Int8Errors> all = entries();
  std::erase_if(all, [&](const Int8Errors& other) { return other.weights == errors.weights; });
  all.push_back(errors);
  nlohmann::json document = {{kFormatKey, kFormat}, {"transformers", nlohmann::json::array()}};
  for (const Int8Errors& one : all) document["transformers"].push_back(to_json(one));
  // Names of folders may be of any bytes.
  write_file(file_, json_text(document, 1) + "\n");
}

}  // namespace zoetrope::pipeline
