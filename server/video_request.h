// The body of POST /v1/videos as settings: which fields there are, what other servers call them, and how they become
// the options of a run. Names, ranges and sentences are those of pipeline/settings/generate_options.h. Knows no HTTP.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/settings/generate_options.h"

namespace zoetrope::server {

// What a key of `zoetrope generate` is to a server.
enum class KeyUse : uint8_t {
  kRequest,  // a field of a request
  kUpload,   // a field of a request that is a file
  kModel,    // fixed when the server starts
  kNone,     // neither: one request is one video, and its files are the server's
};
KeyUse use_of_key(std::string_view key);
// The keys that a request may set, and those that it may upload.
const std::vector<std::string>& request_keys();
const std::vector<std::string>& upload_keys();

// A field of a body: text, or the bytes of a file.
struct Field {
  std::string name, value;
  bool file = false;
};

struct Upload {
  std::string key;  // "image"
  std::string bytes;
};

struct VideoRequest {
  std::string model;                            // empty: the first
  std::map<std::string, std::string> settings;  // by request_keys()
  std::optional<double> seconds;                // of the clip
  std::vector<Upload> uploads;
};

// A JSON object. Files are "data:image/png;base64,…", alone or as {"image_url": …}. Throws ApiError.
std::vector<Field> fields_of_json(std::string_view body);

// The parts of a form. A list may come as parts NAME[], one for each item: texts are joined with commas.
std::vector<Field> fields_of_form(std::vector<Field> parts);

// Throws ApiError for a field that there is not, by name, one that is given twice, and what is not of its form.
VideoRequest parse_video_request(const std::vector<Field>& fields);

// Sets what a request says over `options`, which has the server's own settings: its max_area holds for pictures that
// come without a size. `lora_folder`: where the files are that lora, lora_high and lora_low name; empty: there is none.
// Throws ApiError.
void apply(const VideoRequest& request, const std::filesystem::path& lora_folder, pipeline::GenerateOptions& options);
void apply_settings(const std::map<std::string, std::string>& settings, const std::filesystem::path& lora_folder,
                    pipeline::GenerateOptions& options);

// The settings of a request that differ from those of the program, with which it is repeated.
std::map<std::string, std::string> settings_to_keep(const VideoRequest& request,
                                                    const pipeline::GenerateOptions& options);

// The ending of a file with these first bytes: ".png", ".jpg", ".mp4", …; of safetensors for `latents`. Throws ApiError
// for other kinds of files.
std::string upload_ending(const Upload& upload);

// What the server gave to the model that decides the video, and these settings do not say: where it is not the default.
std::map<std::string, std::string> settings_of_model(const pipeline::GenerateOptions& options,
                                                     const std::map<std::string, std::string>& kept);

}  // namespace zoetrope::server
