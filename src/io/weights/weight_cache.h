// Packed weights on disk, so that the next start maps them instead of packing again. One file holds all packed weights
// of a model component. It is used only if it was packed from the same weights (their identity) into the same layouts,
// and each packed weight only if its checksum is right. A bad cache is not an error: it becomes a note, and the weights
// are packed again.
//
// Every byte is read to verify it. From the page cache that costs about as much as mapping the pages, which the first
// forward pass would do anyway; a sample would be three times as fast but miss a damaged block. Verification goes
// weight by weight, so that loading from a slow disk can report progress.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/weights/weight_buffer.h"

namespace zoetrope::io {

class WeightCache {
 public:
  // A packed weight: the hash of its sources and layout, and its place in the file.
  struct Entry {
    uint64_t key;
    uint64_t offset;
    uint64_t bytes;
  };
  struct Contents {
    std::string identity;        // of the weights
    std::vector<Entry> entries;  // by ascending offset, 64-byte aligned
    uint64_t bytes;              // of all
  };
  enum class Access { kReadWrite, kRead };

  // Files are FOLDER/NAME-HASH.weights; of several processes with one folder, one should write.
  WeightCache(std::filesystem::path folder, std::string name, Access access = Access::kReadWrite);
  WeightCache(const WeightCache&) = delete;
  WeightCache& operator=(const WeightCache&) = delete;
  ~WeightCache();  // as stop()

  class MappedFile : public WeightBuffer {
   public:
    virtual std::string name() const = 0;
    virtual size_t bytes() const = 0;  // from data() on
    // To read the same from, and where data() begins in it.
    virtual int descriptor() const = 0;
    static uint64_t begin();
  };
  // A cache file that fits, mapped read-only and not verified yet.
  class Kept : public MappedFile {
   public:
    virtual bool verify(size_t entry) const = 0;   // reads the whole weight; any thread
    virtual void release(size_t entry) const = 0;  // unmaps its pages
  };
  // Null where there is no such file or it cannot be used. `whole`: all of it will be in memory.
  std::unique_ptr<Kept> open(const Contents& contents, bool whole = true);
  // A file in the making, for weights that do not fit into memory: each is packed in its place in data() and written
  // to the disk by the system.
  class Made : public MappedFile {
   public:
    virtual void finish(size_t entry) = 0;  // its bytes are complete: takes their checksum and unmaps them; any thread
    // After all entries. Access::kReadWrite: the file gets its name. Throws Error where it cannot be written.
    virtual void complete() = 0;
  };
  // Throws Error where there is no folder, or no space for the file.
  std::unique_ptr<Made> make(const Contents& contents);
  void note_damaged(const Contents& contents);  // what verify() found
  // Starts writing the packed weights that lie at `places`; returns at once. They must stay until finish() or stop().
  // The file appears when it is complete.
  void write(const Contents& contents, std::vector<const std::byte*> places);
  // Waits until the file is complete or could not be written. `tick` is called meanwhile, several times a second; what
  // it throws ends the wait, but not the writing.
  void finish(const std::function<void()>& tick = {});
  void stop();  // ends the writing: a file that is not complete goes

  std::vector<std::string> take_notes();  // sentences for the user; each is returned once

 private:
  std::filesystem::path file(const Contents& contents) const;
  void note(std::string text);
  void set_writes(bool writes);

  std::filesystem::path folder_;
  std::string name_;
  Access access_;
  std::mutex mutex_;
  std::vector<std::string> notes_;   // under mutex_
  bool writes_ = false;              // under mutex_
  std::condition_variable written_;  // writes_ became false
  std::mutex writing_;               // of writer_: several ranks may finish()
  std::jthread writer_;
};

}  // namespace zoetrope::io
