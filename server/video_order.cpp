#include "server/video_order.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace zoetrope::server {
namespace {

using nlohmann::json;
using pipeline::GenerateOptions;

constexpr const char* kOrigin = "order of rank 0";

// Calls visit(key, field) on lists of files, whose names may hold the commas of a list that is text.
template <typename Options, typename Visit>
void each_verbatim(Options& options, const Visit& visit) {
  visit("reference_images", options.reference_images);
  visit("lora", options.lora);
  visit("lora_high", options.lora_high);
  visit("lora_low", options.lora_low);
}

json json_of(const std::vector<std::string>& names) { return names; }
json json_of(const std::vector<LoraFile>& loras) {
  json list = json::array();
  for (const LoraFile& lora : loras) list.push_back({{"file", lora.file.string()}, {"strength", lora.strength}});
  return list;
}

void read(const json& value, std::vector<std::string>& names) { names = value; }
void read(const json& value, std::vector<LoraFile>& loras) {
  loras.clear();
  for (const json& each : value) loras.push_back({each.at("file").get<std::string>(), each.at("strength")});
}

}  // namespace

std::string text_of(const VideoOrder& order) {
  auto settings = pipeline::changed_settings(order.options);
  json verbatim = json::object();
  each_verbatim(order.options, [&](const char* key, const auto& field) {
    settings.erase(key);
    verbatim[key] = json_of(field);
  });
  return exact_json_text(json({{"model", order.model}, {"settings", settings}, {"verbatim", verbatim}}));
}

VideoOrder parse_video_order(const std::string& text) {
  const json parsed = json::parse(text);
  VideoOrder order;
  order.model = parsed.at("model");
  OptionSet set = pipeline::describe_options(order.options);
  for (const auto& [key, value] : parsed.at("settings").items()) set.set(key, value.get<std::string>(), kOrigin);
  each_verbatim(order.options, [&](const char* key, auto& field) { read(parsed.at("verbatim").at(key), field); });
  return order;
}

}  // namespace zoetrope::server
