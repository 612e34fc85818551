// How fast a file comes from its disk, and whether it has to: the page cache may have it. Measured where a run is about
// to read weights as it computes; what memory does is figures.h.
#pragma once

#include <filesystem>

namespace zoetrope::machine {

// bytes/s of one sequential read that bypasses the page cache, or follows its pages' removal where the file system has
// no such reads. Takes half a second at most, or 256 MB. 0 where the file cannot be read or is empty.
double disk_bandwidth(const std::filesystem::path& file);

// The share of a file's pages that are in the page cache, 0 to 1. 0 where the system does not say: it does only to the
// owner of a file and to those who may write it.
double resident_share(const std::filesystem::path& file);

}  // namespace zoetrope::machine
