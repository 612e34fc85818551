// Derived forms on disk, so that the next start maps them instead of making them. One file holds the forms of one model
// component, whole; it is used only if it was made from the same weights (their identity) into the same forms, and a
// form of it only if every byte is what was written. A cache is never a reason to fail: what is wrong with it becomes a
// note, and the forms are made.
//
// Every byte is read to verify it: from the page cache that costs about what mapping the pages costs, which the first
// forward would pay anyway; a sample would be three times as fast and not see a damaged block. Form by form, so that
// who loads from a slow disk can say how far it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/form_block.h"

namespace zoetrope::io {

class WeightCache {
 public:
  // A form by the hash of what it is made of and how, and its place among the forms.
  struct Entry {
    uint64_t form;
    uint64_t offset;
    uint64_t bytes;
  };
  struct Contents {
    std::string identity;        // of the weights
    std::vector<Entry> entries;  // by rising offset, 64-byte aligned
    uint64_t bytes;              // of all
  };
  enum class Access { kReadWrite, kRead };

  // Files are FOLDER/NAME-HASH.weights; several processes with one folder: one of them should write.
  WeightCache(std::filesystem::path folder, std::string name, Access access = Access::kReadWrite);
  WeightCache(const WeightCache&) = delete;
  WeightCache& operator=(const WeightCache&) = delete;
  ~WeightCache();  // as finish()

  // A file that fits, its forms in place, read-only and not verified yet.
  class Kept : public FormBlock {
   public:
    virtual bool verify(size_t entry) const = 0;  // reads the form; any thread
  };
  // Null where there is no such file or it cannot be used.
  std::unique_ptr<Kept> open(const Contents& contents);
  void note_damaged(const Contents& contents);  // what verify() found
  // Begins to write the forms, one at each place; returns at once. They must stay until finish(). The file appears when
  // it is whole.
  void write(const Contents& contents, std::vector<const std::byte*> places);
  void finish();  // waits until the file is there, or could not be written

  std::vector<std::string> take_notes();  // sentences for the user; each is given once

 private:
  std::filesystem::path file(const Contents& contents) const;
  void note(std::string text);

  std::filesystem::path folder_;
  std::string name_;
  Access access_;
  std::mutex mutex_;
  std::vector<std::string> notes_;  // under mutex_
  std::mutex writing_;              // of writer_: several ranks may finish()
  std::jthread writer_;
};

}  // namespace zoetrope::io
