// All outputs are written with this class: complete under their final name, or not at all. A file is written under a
// temporary name in the same folder, flushed to the disk, and renamed. Links are followed, and their target is
// replaced. A stream (pipe, terminal, device, /dev/stdout) gets the data when it is complete. What the run reads
// (run_files.h) is refused. Whoever gives up, by return, exception or signal, leaves nothing behind.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "base/unfinished_files.h"

namespace zoetrope {

class AtomicFile {
 public:
  // Creates the temporary, so that a missing or unwritable folder, or a final name that cannot be replaced (a folder,
  // an input of the run, a pipe without a reader), is an Error now and not after an hour of computing.
  explicit AtomicFile(std::filesystem::path final_path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();  // removes the temporary unless committed

  const std::filesystem::path& path() const { return final_; }
  // For libraries that open the file themselves; they must have closed it before commit(). If they may have created
  // it again, call check_not_stopped() afterwards.
  const std::filesystem::path& temporary() const { return temporary_; }

  void check_not_stopped() const;              // Error if remove_unfinished_files() was called
  void write(const void* data, size_t bytes);  // appends; a full disk is an Error
  void close();                                // flushes to the disk; no write() after it. commit() implies it.
  void commit();                               // close and rename; an existing file is replaced
  void commit_as(const std::filesystem::path& final_path);  // under another name in the same folder

 private:
  void discard();
  void send();

  std::filesystem::path final_;      // as the user wrote it
  std::filesystem::path target_;     // all links resolved
  std::filesystem::path temporary_;  // empty once committed or moved from
  UnfinishedPath unfinished_;
  int descriptor_ = -1;  // of the temporary
  int stream_ = -1;      // to which the temporary is sent; -1: none
};

// Whether a file has the name of a temporary, which a process that was killed leaves behind.
bool is_unfinished_file(std::string_view name);

// An AtomicFile with this text.
void write_file(const std::filesystem::path& path, std::string_view text);

// Where an AtomicFile of this name would write: all links resolved; or a pipe, a device, a descriptor that this process
// was given. Throws Error for what is neither, a folder for one.
struct OutputPlace {
  std::filesystem::path path;
  bool stream = false;
};
OutputPlace output_place(const std::filesystem::path& path);

// Throws the Error that an AtomicFile of this name would throw, to check before long work begins. A pipe is not opened,
// because closing it would look like the end to its reader.
void check_writable(const std::filesystem::path& path);

}  // namespace zoetrope
