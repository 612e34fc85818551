// All files are opened for reading with this class. Only regular files: pipes, terminals and devices, which wait for a
// writer, cannot seek or never end, are refused at once. Opened files are recorded, so that no output of the same run
// replaces them (run_files.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace zoetrope {

// Identifies a version of a file: its inode, its size, when its contents and when its inode changed. The last cannot be
// set by tools that copy, archive or synchronise.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  // since the epoch
  int64_t changed_ns = 0;   // since the epoch; of the inode: contents, name, owner or times

  bool operator==(const FileStamp&) const = default;
  // Whether the times may have a resolution of up to two seconds (FAT, ext3, many network and FUSE file systems)
  // instead of the kernel's 10 ms or less: they are whole hundredths of a second.
  bool coarse() const { return changed_ns % 10'000'000 == 0; }
};

// Of the file that has this name now; empty if there is none.
std::optional<FileStamp> stamp_of(const std::filesystem::path& path);
// Whether something has this name; what cannot be accessed counts as absent.
bool is_there(const std::filesystem::path& path);
// Also through links. Throws Error where that cannot be told, as behind a folder that may not be entered. What is too
// long for a name is none.
bool is_folder(const std::filesystem::path& path);
// Returns when no later change of the file can have the times of `stamp`: at once if the stamp is older than the
// resolution of its times.
void wait_until_past(const FileStamp& stamp);

class InputFile {
 public:
  // A file that the user named, which is never replaced, or a cache file of ours.
  enum class Kind { kInput, kCache };

  // Error "PATH: …" if it is missing, not a regular file, or cannot be opened.
  explicit InputFile(const std::filesystem::path& path, Kind kind = Kind::kInput);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  int descriptor() const { return descriptor_; }  // owned by this object
  uint64_t bytes() const { return stamp_.bytes; }
  const FileStamp& stamp() const { return stamp_; }

  // `count` bytes from `offset`; Error if the file ends before.
  void read(uint64_t offset, void* target, size_t count) const;

 private:
  std::filesystem::path path_;
  FileStamp stamp_;
  int descriptor_ = -1;
};

constexpr size_t kMaxTextBytes = size_t{256} << 20;  // tokenizers are the largest, 17 MB

// The whole file. Error as above, and if it is larger than `limit`.
std::string read_file(const std::filesystem::path& path, size_t limit = kMaxTextBytes,
                      InputFile::Kind kind = InputFile::Kind::kInput);

}  // namespace zoetrope
