#include "server/video_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "models/sampling/published_caches.h"
#include "pipeline/settings/run_identity.h"
#include "server/api_error.h"
#include "server/base64.h"

namespace zoetrope::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using pipeline::GenerateOptions;

constexpr size_t kMaxPromptBytes = 32768;
constexpr double kLeastSeconds = 0.004;  // a frame at 240 per second
constexpr double kMostSeconds = 4093;
constexpr const char* kOrigin = "request";

const std::set<std::string, std::less<>> kTexts = {"model", "prompt", "negative_prompt"};
const std::set<std::string, std::less<>> kLoras = {"lora", "lora_high", "lora_low"};
const std::set<std::string, std::less<>> kLists = {
    "lora",      "lora_high",    "lora_low",           "conditioning_scale", "sigmas",
    "timesteps", "cache_ratios", "cache_coefficients", "reference_images"};

// What other servers call a field.
const std::map<std::string, std::string, std::less<>> kOtherNames = {
    {"input_reference", "image"}, {"image_reference", "image"}, {"mask_video", "mask"}, {"video", "control_video"}};

const std::string& own_name(const std::string& name) {
  const auto other = kOtherNames.find(name);
  return other == kOtherNames.end() ? name : other->second;
}

ApiError wrong(const std::string& param, const std::string& message, const char* code = "invalid_value") {
  return {400, code, message, param};
}

const std::vector<std::string>& unused_keys() {
  static const std::vector<std::string> keys = {"model",  "prompts",       "num_videos",       "batch_size",
                                                "output", "dump",          "journal",          "resume",
                                                "trace",  "cache_compare", "compare_one_rank", "grid"};
  return keys;
}

bool holds(const std::vector<std::string>& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

[[noreturn]] void refuse_unknown(const std::string& name) {
  GenerateOptions options;
  if (pipeline::describe_options(options).knows(name)) {
    if (use_of_key(name) == KeyUse::kModel)
      throw wrong(name, fmt::format("{}: is fixed when the server starts; leave it out", name), "unknown_parameter");
    throw wrong(name, fmt::format("{}: is not for a request, which makes one video; leave it out", name),
                "unknown_parameter");
  }
  if (const size_t bracket = name.find('['); bracket != std::string::npos && kLoras.contains(name.substr(0, bracket)))
    throw wrong(name,
                fmt::format("there is no field '{}'; in a form write {} as NAME:SCALE", name, name.substr(0, bracket)),
                "unknown_parameter");
  std::vector<std::string> names = request_keys();
  names.insert(names.end(), upload_keys().begin(), upload_keys().end());
  for (const char* more : {"model", "size", "seconds", "input_reference"}) names.emplace_back(more);
  const std::string near = nearest_name(name, names);
  throw wrong(name,
              fmt::format("there is no field '{}'{}", name,
                          near.empty() ? "; leave it out" : fmt::format("; did you mean '{}'?", near)),
              "unknown_parameter");
}

// The text of a JSON value that is no object.
std::string text_of(const std::string& name, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (kTexts.contains(name)) throw wrong(name, fmt::format("{}: must be text", name));
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number()) return json_text(value);
  if (value.is_array()) {
    std::vector<std::string> items;
    for (const json& item : value) {
      if (!item.is_number()) throw wrong(name, fmt::format("{}: a list may hold numbers only", name));
      items.push_back(json_text(item));
    }
    return fmt::format("{}", fmt::join(items, ","));
  }
  throw wrong(name, fmt::format("{}: must be text, a number, true or false", name));
}

// {"name": "style", "scale": 0.8} as style:0.8, with the names that other servers have for both.
std::string lora_text(const std::string& key, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::vector<std::string> entries;
    for (const json& item : value) entries.push_back(lora_text(key, item));
    return fmt::format("{}", fmt::join(entries, ","));
  }
  if (!value.is_object())
    throw wrong(key, fmt::format("{}: must be {{\"name\": NAME, \"scale\": NUMBER}}, a list of these, or text", key));
  std::string name;
  double scale = 1;
  for (const auto& [field, part] : value.items()) {
    if ((field == "name" || field == "lora_name" || field == "adapter") && part.is_string()) {
      name = part.get<std::string>();
    } else if ((field == "scale" || field == "lora_scale") && part.is_number()) {
      scale = part.get<double>();
    } else {
      throw wrong(key, fmt::format("{}.{}: there are a text `name` and a number `scale`", key, field));
    }
  }
  if (name.empty() || name.find_first_of(",:") != std::string::npos)
    throw wrong(key, fmt::format("{}.name: must name a file of the server's lora_folder", key));
  return fmt::format("{}:{}", name, scale);
}

// The bytes of "data:image/png;base64,…", alone or as {"image_url": …}.
Field file_of(const std::string& name, const json& value) {
  const json* url = &value;
  if (value.is_object() && value.size() == 1 && value.contains("image_url")) url = &value["image_url"];
  const std::string text = url->is_string() ? url->get<std::string>() : "";
  const size_t comma = text.find(',');
  if (!text.starts_with("data:") || comma == std::string::npos ||
      !std::string_view(text).substr(0, comma).ends_with(";base64"))
    throw wrong(name,
                fmt::format("{}: in JSON a file is \"data:image/png;base64,…\"; this server opens no address", name));
  std::optional<std::string> bytes = decode_base64(std::string_view(text).substr(comma + 1));
  if (!bytes) throw wrong(name, fmt::format("{}: is not base64", name));
  return {.name = name, .value = std::move(*bytes), .file = true};
}

void check_text(const std::string& key, const std::string& value) {
  if (value.size() > kMaxPromptBytes)
    throw wrong(key, fmt::format("{}: has {} bytes, more than {}", key, value.size(), kMaxPromptBytes));
  if (value.find('\0') != std::string::npos) throw wrong(key, fmt::format("{}: holds a NUL character", key));
}

void set_size(const std::string& value, std::map<std::string, std::string>& settings) {
  const size_t x = value.find('x');
  if (x == std::string::npos) throw wrong("size", fmt::format("size={}: must be WIDTHxHEIGHT, as 832x480", value));
  for (const auto& [key, text] : {std::pair("width", value.substr(0, x)), std::pair("height", value.substr(x + 1))}) {
    if (text.empty() || text.size() > 5 || text.find_first_not_of("0123456789") != std::string::npos)
      throw wrong("size", fmt::format("size={}: must be WIDTHxHEIGHT, as 832x480", value));
    if (settings.contains(key)) throw wrong("size", fmt::format("size={}: leave out {}", value, key));
    settings[key] = text;
  }
}

// The files of step caches are the server's: a request names a model or gives numbers.
void check_cache_numbers(const std::string& key, const std::string& value) {
  if (key == "cache_ratios" && sampling::published_ratios(value) != nullptr) return;
  if (key == "cache_coefficients" && sampling::published_coefficients(value) != nullptr) return;
  try {
    parse_numbers(value, {});
  } catch (const Error&) {
    throw wrong(key, fmt::format("{}={}: must be a list of numbers, or one of {}", key, value,
                                 key == "cache_ratios" ? sampling::models_with_ratios()
                                                       : sampling::models_with_coefficients()));
  }
}

LoraFile named_lora(const std::string& key, const LoraFile& named, const fs::path& folder) {
  if (folder.empty()) throw wrong(key, fmt::format("{}: this server has no lora_folder", key));
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const fs::path name = entry.path().filename();
    if (name.extension() != ".safetensors" || !entry.is_regular_file(ignored)) continue;
    if (named.file == name || named.file == name.stem()) return {entry.path(), named.strength};
    names.push_back(name.stem().string());
  }
  std::sort(names.begin(), names.end());
  throw wrong(key, fmt::format("{}={}: there is no such file in the server's lora_folder; there are: {}", key,
                               named.file.string(), fmt::join(names, ", ")));
}

int64_t frames_of(double seconds, const GenerateOptions& options) {
  return 4 * static_cast<int64_t>(std::llround(seconds * static_cast<double>(options.fps) / 4)) + 1;
}

}  // namespace

const std::vector<std::string>& upload_keys() {
  static const std::vector<std::string> keys = {"image",      "last_image",       "control_video",
                                                "mask",       "reference_images", "pose_video",
                                                "face_video", "background_video", "latents"};
  return keys;
}

const std::vector<std::string>& request_keys() {
  static const std::vector<std::string> keys = {"prompt",
                                                "negative_prompt",
                                                "lora",
                                                "lora_high",
                                                "lora_low",
                                                "conditioning_scale",
                                                "mode",
                                                "segment_frame_length",
                                                "prev_segment_conditioning_frames",
                                                "height",
                                                "width",
                                                "max_area",
                                                "num_frames",
                                                "num_inference_steps",
                                                "guidance_scale",
                                                "guidance_scale_2",
                                                "flow_shift",
                                                "boundary_ratio",
                                                "scheduler",
                                                "sigma_grid",
                                                "sigmas",
                                                "timesteps",
                                                "seed",
                                                "recipe",
                                                "max_sequence_length",
                                                "mask_padding_tokens",
                                                "fps",
                                                "codec",
                                                "crf",
                                                "cache",
                                                "cache_threshold",
                                                "cache_max_skips",
                                                "cache_retention",
                                                "cache_ratios",
                                                "cache_coefficients",
                                                "cache_retention_steps",
                                                "cache_interval",
                                                "vae_tiling",
                                                "preview"};
  return keys;
}

KeyUse use_of_key(std::string_view key) {
  if (holds(request_keys(), key)) return KeyUse::kRequest;
  if (holds(upload_keys(), key)) return KeyUse::kUpload;
  return holds(unused_keys(), key) ? KeyUse::kNone : KeyUse::kModel;
}

std::vector<Field> fields_of_json(std::string_view body) {
  json document;
  try {
    document = parse_json(body, "body");
  } catch (const Error& error) {
    throw ApiError(400, "invalid_json", error.what());
  }
  if (!document.is_object()) throw ApiError(400, "invalid_json", "body: must be a JSON object");
  std::vector<Field> fields;
  for (const auto& [name, value] : document.items()) {
    if (value.is_null()) continue;  // clients write what is unset so
    const std::string& key = own_name(name);
    if (kLoras.contains(name)) {
      fields.push_back({.name = name, .value = lora_text(name, value)});
    } else if (use_of_key(key) == KeyUse::kUpload) {
      if (value.is_array())
        for (const json& item : value) fields.push_back(file_of(name, item));
      else fields.push_back(file_of(name, value));
    } else if (use_of_key(key) != KeyUse::kRequest && key != "model" && key != "size" && key != "seconds") {
      refuse_unknown(name);
    } else {
      fields.push_back({.name = name, .value = text_of(name, value)});
    }
  }
  return fields;
}

std::vector<Field> fields_of_form(std::vector<Field> parts) {
  constexpr std::string_view kListed = "[]";
  std::vector<Field> fields;
  std::map<std::string, size_t> texts;  // of lists, where they are in `fields`
  for (Field& part : parts) {
    const std::string name = part.name.substr(0, part.name.size() - std::min(part.name.size(), kListed.size()));
    const bool listed = part.name.ends_with(kListed) && kLists.contains(name);
    if (listed) part.name = name;
    if (listed && !part.file) {
      const auto [first, is_first] = texts.try_emplace(name, fields.size());
      if (!is_first) {
        fields[first->second].value += "," + part.value;
        continue;
      }
    }
    fields.push_back(std::move(part));
  }
  return fields;
}

VideoRequest parse_video_request(const std::vector<Field>& fields) {
  VideoRequest request;
  std::set<std::string> seen;
  std::optional<std::string> size;
  for (const Field& field : fields) {
    const std::string& key = own_name(field.name);
    if (!seen.insert(key).second && key != "reference_images")
      throw wrong(field.name, fmt::format("{}: is given twice", field.name));
    if (use_of_key(key) == KeyUse::kUpload) {
      if (!field.file) throw wrong(field.name, fmt::format("{}: must be an uploaded file, not text", field.name));
      if (field.value.empty()) throw wrong(field.name, fmt::format("{}: the uploaded file is empty", field.name));
      request.uploads.push_back({key, field.value});
      continue;
    }
    if (field.file) throw wrong(field.name, fmt::format("{}: must be text, not a file", field.name));
    if (!decode_utf8(field.value)) throw wrong(field.name, fmt::format("{}: is not UTF-8", field.name));
    if (key == "model") {
      request.model = field.value;
    } else if (key == "size") {
      size = field.value;
    } else if (key == "seconds") {
      try {
        request.seconds = parse_number(field.value, {kLeastSeconds, kMostSeconds});
      } catch (const Error& error) {
        throw wrong("seconds", fmt::format("seconds={}: {}", field.value, error.what()));
      }
    } else if (use_of_key(key) == KeyUse::kRequest) {
      request.settings[key] = field.value;
    } else {
      refuse_unknown(field.name);
    }
  }
  if (size) set_size(*size, request.settings);
  return request;
}

void apply_settings(const std::map<std::string, std::string>& settings, const fs::path& lora_folder,
                    GenerateOptions& options) {
  OptionSet set = pipeline::describe_options(options);
  const std::map<std::string, std::vector<LoraFile>*> loras = {
      {"lora", &options.lora}, {"lora_high", &options.lora_high}, {"lora_low", &options.lora_low}};
  const auto set_key = [&](const std::string& key, const std::string& value) {
    try {
      set.set(key, value, kOrigin);
    } catch (const Error& error) {
      throw wrong(key, error.what());
    }
  };
  // The others change what it says, in whatever order a request names them.
  if (const auto recipe = settings.find("recipe"); recipe != settings.end()) set_key(recipe->first, recipe->second);
  for (const auto& [key, value] : settings) {
    if (key == "recipe") continue;
    if (key == "prompt" || key == "negative_prompt") check_text(key, value);
    if (key == "cache_ratios" || key == "cache_coefficients") check_cache_numbers(key, value);
    set_key(key, value);
    if (const auto named = loras.find(key); named != loras.end() && value != kDefaultValue)
      for (LoraFile& lora : *named->second) lora = named_lora(key, lora, lora_folder);
  }
}

void apply(const VideoRequest& request, const fs::path& lora_folder, GenerateOptions& options) {
  // That of the server is for pictures that come without a size.
  const bool pictured = std::ranges::any_of(request.uploads, [](const Upload& each) { return each.key == "image"; });
  if (!pictured || request.settings.contains("width") || request.settings.contains("height")) options.max_area.reset();
  apply_settings(request.settings, lora_folder, options);
  if (const int64_t steps = steps_of(options);
      request.settings.contains("num_inference_steps") && options.num_inference_steps != steps) {
    const char* list = options.sigmas.empty() ? "timesteps" : "sigmas";
    throw wrong("num_inference_steps",
                fmt::format("num_inference_steps={}: {} are set, of {} steps; leave num_inference_steps out, or give "
                            "other {}",
                            options.num_inference_steps, list, steps, list));
  }
  if (!request.seconds) return;
  const int64_t frames = frames_of(*request.seconds, options);
  if (request.settings.contains("num_frames") && options.num_frames != frames)
    throw wrong("seconds",
                fmt::format("seconds={}: is {} frames at fps={}, not num_frames={}; leave one of the two out",
                            *request.seconds, frames, options.fps, options.num_frames));
  apply_settings({{"num_frames", fmt::to_string(frames)}}, lora_folder, options);
}

std::map<std::string, std::string> settings_to_keep(const VideoRequest& request, const GenerateOptions& options) {
  std::map<std::string, std::string> settings;
  for (const auto& [key, value] : pipeline::changed_settings(options))
    if (use_of_key(key) == KeyUse::kRequest && !kLoras.contains(key)) settings[key] = value;
  for (const auto& [key, value] : request.settings)
    if (kLoras.contains(key)) settings[key] = value;
  return settings;
}

std::string upload_ending(const Upload& upload) {
  using namespace std::string_view_literals;
  const std::string_view bytes = upload.bytes;
  if (upload.key == "latents") return ".safetensors";
  if (bytes.starts_with("\x89PNG"sv)) return ".png";
  if (bytes.starts_with("\xff\xd8\xff"sv)) return ".jpg";
  const std::string_view riff = bytes.starts_with("RIFF"sv) && bytes.size() >= 12 ? bytes.substr(8, 4) : ""sv;
  if (riff == "WEBP"sv) return ".webp";
  const bool picture = upload.key == "image" || upload.key == "last_image" || upload.key == "reference_images";
  if (picture) throw wrong(upload.key, fmt::format("{}: must be a PNG, JPEG or WebP file", upload.key));
  if (bytes.substr(0, 12).substr(std::min<size_t>(4, bytes.size())).starts_with("ftyp"sv)) return ".mp4";
  if (bytes.starts_with("\x1a\x45\xdf\xa3"sv)) return ".mkv";  // and WebM
  if (bytes.starts_with("GIF8"sv)) return ".gif";
  if (riff == "AVI "sv) return ".avi";
  // No other kind: a playlist would name files of this machine.
  throw wrong(upload.key, fmt::format("{}: must be an MP4, MKV, WebM, AVI or GIF file{}", upload.key,
                                      upload.key == "mask" ? ", or a PNG, JPEG or WebP" : ""));
}

std::map<std::string, std::string> settings_of_model(const pipeline::GenerateOptions& options,
                                                     const std::map<std::string, std::string>& kept) {
  const std::map<std::string, std::string> defaults = pipeline::deciding_settings({});
  std::map<std::string, std::string> settings = pipeline::deciding_settings(options);
  std::erase_if(settings, [&](const auto& setting) {
    const std::string& key = setting.first;
    const bool of_server = use_of_key(key) == KeyUse::kModel || key == "cache_threshold" || key.starts_with("lora");
    return !of_server || kept.contains(key) || setting == *defaults.find(key);
  });
  return settings;
}

}  // namespace zoetrope::server
