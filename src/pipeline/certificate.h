// What a verification found, as a JSON file that another machine can check (docs/trust.md has its fields).
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "pipeline/verify.h"

namespace zoetrope::pipeline {

// Throws Error where the file cannot be written. A file that is there is replaced.
void write_certificate(const VerifyReport& report, const std::filesystem::path& file);

struct Certificate {
  std::filesystem::path file;
  std::string version;  // of the program that wrote it
  VerifyReport report;  // without the values of its checks
};

// Of the text of `file`. Throws Error where it is none, is damaged or of another format.
Certificate read_certificate(const std::string& text, const std::filesystem::path& file);

// Throws Error for another run or other weights, and for a certificate of a run that left its bounds.
void require_same_run(const Certificate& certificate, const RunIdentity& here, const std::string& weights);
// How a verification of the same run agrees with a certificate, in a line. Throws Error where latents are further away
// than those of two correct runs can be.
std::string compare_with(const Certificate& certificate, const VerifyReport& here);

}  // namespace zoetrope::pipeline
