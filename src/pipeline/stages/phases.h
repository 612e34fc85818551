// The phases of a run's Timing, written once: a misspelt one reads as 0 s.
#pragma once

#include <initializer_list>
#include <string_view>

#include "trace/timing.h"

namespace zoetrope::pipeline::phases {

using Path = const char*;

inline constexpr Path kLoad = "Load";
inline constexpr Path kLoadExpert[] = {"Load/transformer", "Load/transformer_2"};
inline constexpr Path kLoadVae = "Load/VAE";
inline constexpr std::initializer_list<Path> kLoads = {kLoadExpert[0], kLoadExpert[1], kLoadVae};

inline constexpr Path kPrepare = "Prepare";

inline constexpr Path kInference = "Inference";
inline constexpr Path kConditioning = "Inference/Conditioning";
inline constexpr Path kTextEncoder = "Inference/Conditioning/text encoder";
inline constexpr Path kImageEncoder = "Inference/Conditioning/image encoder";
inline constexpr Path kVaeEncode = "Inference/Conditioning/VAE encode";
inline constexpr Path kFaceEncoder = "Inference/Conditioning/face encoder";
inline constexpr std::initializer_list<Path> kConditionings = {kTextEncoder, kImageEncoder, kVaeEncode, kFaceEncoder};
inline constexpr Path kDenoise = "Inference/Denoise";
inline constexpr Path kJournal = "Inference/Journal";
inline constexpr Path kPreview = "Inference/Preview";
inline constexpr Path kDecode = "Inference/VAE decode";
inline constexpr Path kDecodeCompute = "Inference/VAE decode/compute";
inline constexpr Path kDecodeRanks = "Inference/VAE decode/waiting for ranks";
inline constexpr Path kDecodeOutput = "Inference/VAE decode/waiting for the output";
inline constexpr Path kDecodeMeanwhile = "Inference/VAE decode/output, meanwhile";
inline constexpr Path kDecodeFormatting = "Inference/VAE decode/host formatting";

// Within the phase that it is a part of.
constexpr std::string_view name_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

inline double seconds_of(const trace::Timing& timing, std::initializer_list<Path> paths) {
  double seconds = 0;
  for (const Path path : paths) seconds += timing.seconds(path);
  return seconds;
}

}  // namespace zoetrope::pipeline::phases
