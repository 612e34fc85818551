// Checks of files that keys name, before anything is computed for them; and a record of the files that runs of this
// process read, so that no output replaces an input. InputFile adds what it opens, AtomicFile asks before it writes.
// Others need this only for folders whose listing is an input, and for libraries that open files themselves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>

namespace zoetrope {

struct NamedFile {
  const char* key;
  const std::string& path;  // empty: none
};

// `path` if it exists, else empty: for keys that take a file or a name.
std::string if_exists(const std::string& path);

// Throws Error if two keys name the same file, by whatever path.
void check_files_differ(std::initializer_list<NamedFile> files);

// One run, one command or one opened model: what is read from its start until another begins counts for it, and is
// spared as long as it lives. Without one nothing is noted.
class RunFiles {
 public:
  RunFiles();
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;
  ~RunFiles();
  struct Notes;

 private:
  std::unique_ptr<Notes> notes_;
};

void note_input(const std::filesystem::path& path, uint64_t device, uint64_t inode);
void note_input(const std::filesystem::path& path);  // no effect if it does not exist
// A folder whose files are the input, whatever their names: nothing may be written into it.
void note_input_folder(const std::filesystem::path& folder);

// Error if `target` is a file that a run reads (by device and inode) or is in a folder that is an input. `named` is
// what the user wrote, for the message.
void check_spares_inputs(const std::filesystem::path& target, const std::filesystem::path& named);

}  // namespace zoetrope
