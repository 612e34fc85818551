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

// Throws Error for a file that is none, is damaged or of a newer format.
Certificate read_certificate(const std::filesystem::path& file);

// Throws Error for another run, and for a certificate of one that left its bounds.
void require_same_run(const Certificate& certificate, const RunIdentity& here);
// How a verification of the same run agrees with a certificate, in a line. Throws Error where weights differ, or where
// latents are further away than two correct runs can be.
std::string compare_with(const Certificate& certificate, const VerifyReport& here);

}  // namespace zoetrope::pipeline
