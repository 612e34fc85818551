// Which files the runs of this process read, so that none of them is replaced by what a run writes. InputFile notes
// what it opens, AtomicFile asks before it writes; nobody else needs this, but for folders whose listing is an input
// and for libraries that open files themselves.
#pragma once

#include <cstdint>
#include <filesystem>

namespace zoetrope {

// One run, or one command: what is read while any of these lives counts for all of them. Without one nothing is noted.
class RunFiles {
 public:
  RunFiles();
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;
  ~RunFiles();
};

void note_input(const std::filesystem::path& path, uint64_t device, uint64_t inode);
void note_input(const std::filesystem::path& path);  // nothing, where nothing is there
// A folder whose files are the input, whatever their names: nothing may be written into it.
void note_input_folder(const std::filesystem::path& folder);

// Error where `target` is a file that a run reads, by device and inode, or lies in a folder that is an input.
// `named` is what the user wrote, for the message.
void check_spares_inputs(const std::filesystem::path& target, const std::filesystem::path& named);

}  // namespace zoetrope
