// The one way in which files are opened for reading. Only regular files: what waits for a writer, rewinds to nothing or
// never ends (pipes, terminals, devices) is refused at once. What was opened is remembered, so that no output of the
// same run replaces it (run_files.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace zoetrope {

// What tells a version of a file from every other: its inode, its size, when its contents and when its inode changed.
// No copy, archive or synchronisation tool can set the last.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;  // since the epoch
  int64_t changed_ns = 0;   // since the epoch; of the inode: contents, name, owner or times

  bool operator==(const FileStamp&) const = default;
  // True where the times may be of a clock that goes in steps of up to two seconds (FAT, ext3, many network and FUSE
  // file systems) and not in the kernel's, of 10 ms at most: they are whole hundredths of a second.
  bool coarse() const { return changed_ns % 10'000'000 == 0; }
};

// Of the file that has this name now; nothing where there is none.
std::optional<FileStamp> stamp_of(const std::filesystem::path& path);
// Returns when no change that is still to come can have the times of `stamp`: at once where it is older than a step of
// its clock.
void wait_until_past(const FileStamp& stamp);

class InputFile {
 public:
  // What the user named, which stays as it is, or a file that we keep for later runs and replace ourselves.
  enum class Kind { kInput, kCache };

  // Error where nothing is there, it is not a regular file, or it cannot be opened: "PATH: …".
  explicit InputFile(const std::filesystem::path& path, Kind kind = Kind::kInput);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  int descriptor() const { return descriptor_; }  // stays this object's
  uint64_t bytes() const { return stamp_.bytes; }
  const FileStamp& stamp() const { return stamp_; }

  // `count` bytes from `offset`; Error where the file ends before.
  void read(uint64_t offset, void* target, size_t count) const;

 private:
  std::filesystem::path path_;
  FileStamp stamp_;
  int descriptor_ = -1;
};

constexpr size_t kMaxTextBytes = size_t{256} << 20;  // tokenizers are the largest, 17 MB

// The whole file. Error as above, and where it is larger than `limit`.
std::string read_file(const std::filesystem::path& path, size_t limit = kMaxTextBytes,
                      InputFile::Kind kind = InputFile::Kind::kInput);

}  // namespace zoetrope
