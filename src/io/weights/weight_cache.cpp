#include "io/weights/weight_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/file_map.h"
#include "base/hash.h"
#include "base/input_file.h"
#include "base/ticking_wait.h"
#include "io/weights/checksum.h"
#include "io/weights/weight_stream.h"

namespace zoetrope::io {
namespace {

namespace fs = std::filesystem;

// The file: a page with the header, the packed weights, and a table of their checksums, which are known last.
constexpr uint64_t kDataOffset = 4096;
constexpr char kDamaged[] = "is damaged";
constexpr char kMagic[] = "ZOEWGHT1";  // the number is the version

struct Header {
  char magic[8];
  uint64_t identity;  // hash
  uint64_t contents;  // hash of the entries
  uint64_t entries;
  uint64_t data_bytes;
  uint64_t file_bytes;
  uint64_t check;  // of all fields before it
};
static_assert(sizeof(Header) <= kDataOffset);

uint64_t hash_of(const std::vector<WeightCache::Entry>& entries) {
  return checksum(reinterpret_cast<const std::byte*>(entries.data()), entries.size() * sizeof(entries[0]));
}

// One checksum per entry, and one of these checksums.
uint64_t table_bytes(size_t entries) { return (entries + 1) * sizeof(uint64_t); }

Header header_of(const WeightCache::Contents& contents) {
  for (const WeightCache::Entry& entry : contents.entries) {
    ZT_CHECK(entry.bytes <= contents.bytes && entry.offset <= contents.bytes - entry.bytes);
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(header.magic));
  header.identity = fnv1a64(contents.identity);
  header.contents = hash_of(contents.entries);
  header.entries = contents.entries.size();
  header.data_bytes = contents.bytes;
  header.file_bytes = kDataOffset + contents.bytes + table_bytes(contents.entries.size());
  header.check = checksum(reinterpret_cast<const std::byte*>(&header), offsetof(Header, check));
  return header;
}

// A cache file in use. Only writes into this very file matter: a new file of the same name is another one.
class WatchedFile {
 public:
  WatchedFile(fs::path path, const FileStamp& stamp) : path_(std::move(path)), stamp_(stamp) {}
  // Throws Error where it was written to. `intact` reads all of it: a link or a change of rights moves its times too.
  template <typename Intact>
  void require_unchanged(Intact&& intact) {
    const std::lock_guard lock(mutex_);
    const std::optional<FileStamp> now = stamp_of(path_);
    if (!now || now->inode != stamp_.inode || now->device != stamp_.device || *now == stamp_) return;
    if (now->bytes != stamp_.bytes || now->modified_ns != stamp_.modified_ns || !intact())
      fail("{}: was changed while it was in use; remove it and start again", path_.string());
    stamp_ = *now;
  }

 private:
  const fs::path path_;
  FileStamp stamp_;
  std::mutex mutex_;
};

class MappedCache final : public WeightCache::Kept {
 public:
  MappedCache(const fs::path& path, bool whole) : MappedCache(path, InputFile(path, InputFile::Kind::kCache), whole) {}
  MappedCache(const MappedCache&) = delete;
  MappedCache& operator=(const MappedCache&) = delete;

  std::byte* data() const override { return map_.data() + kDataOffset; }
  bool verify(size_t entry) const override {
    return checksum(data() + entries_[entry].offset, entries_[entry].bytes) == sums_[entry];
  }
  std::string name() const override { return path_.string(); }
  int descriptor() const override { return descriptor_.value(); }
  size_t bytes() const override { return stamp_.bytes - kDataOffset; }
  void release(size_t entry) const override {
    release_pages({data() + entries_[entry].offset, entries_[entry].bytes}, {map_.data(), stamp_.bytes});
  }
  void require_unchanged() const override {
    watched_->require_unchanged([this] {
      for (size_t entry = 0; entry < entries_.size(); ++entry)
        if (!verify(entry)) return false;
      return true;
    });
  }

  // What is wrong with the header and the table, or nothing; call it before verify().
  std::string defect(const WeightCache::Contents& contents) {
    if (stamp_.bytes < kDataOffset) return "is cut off";
    Header found, wanted = header_of(contents);
    std::memcpy(&found, map_.data(), sizeof found);
    if (std::memcmp(found.magic, wanted.magic, sizeof found.magic) != 0 ||
        found.check != checksum(reinterpret_cast<const std::byte*>(&found), offsetof(Header, check))) {
      return "is not a weight cache of this version";
    }
    if (found.identity != wanted.identity) return "was made from other weights";
    if (found.contents != wanted.contents) return "holds weights in other layouts";
    // Sizes follow from the layouts, whatever the file says: nothing is read beyond its end.
    if (stamp_.bytes != wanted.file_bytes) {
      return fmt::format("has {} bytes instead of {}", stamp_.bytes, wanted.file_bytes);
    }
    if (std::memcmp(&found, &wanted, sizeof found) != 0) return kDamaged;
    const size_t entries = contents.entries.size();
    sums_.resize(entries + 1);
    std::memcpy(sums_.data(), data() + contents.bytes, table_bytes(entries));
    if (sums_[entries] != checksum(reinterpret_cast<const std::byte*>(sums_.data()), entries * sizeof(uint64_t))) {
      return kDamaged;
    }
    entries_ = contents.entries;
    return {};
  }

 private:
  MappedCache(const fs::path& path, const InputFile& file, bool whole)
      : path_(path), stamp_(file.stamp()), descriptor_(::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0)) {
    watched_ = std::make_unique<WatchedFile>(path, stamp_);
    if (stamp_.bytes == 0) return;  // cannot be mapped
    map_ = FileMap(file.descriptor(), stamp_.bytes, path.string());
    if (whole) ::madvise(map_.data(), stamp_.bytes, MADV_WILLNEED);
  }

  fs::path path_;
  FileStamp stamp_;
  Descriptor descriptor_;
  std::unique_ptr<WatchedFile> watched_;
  FileMap map_;
  std::vector<WeightCache::Entry> entries_;
  std::vector<uint64_t> sums_;  // of the entries, then of these
};

class MadeCache final : public WeightCache::Made {
 public:
  // `named`: complete() gives the file its name; otherwise it goes with this object.
  MadeCache(const fs::path& path, const WeightCache::Contents& contents, bool named)
      : contents_(contents), bytes_(header_of(contents).file_bytes), sums_(contents.entries.size()), named_(named) {
    name_ = path.string();
    file_.emplace(path);
    descriptor_.emplace(::open(file_->temporary().c_str(), O_RDWR | O_CLOEXEC));
    if (descriptor() < 0) refuse("cannot be opened", errno);
    // All of it now: a disk that becomes full in the middle would end the process.
    if (const int error = ::posix_fallocate(descriptor(), 0, static_cast<off_t>(bytes_)); error != 0)
      refuse(fmt::format("{:.3f} GB cannot be reserved", static_cast<double>(bytes_) * 1e-9), error);
    try {
      map_ = FileMap(descriptor(), bytes_, name_, FileMap::Access::kReadWrite);
    } catch (const Error&) {
      refuse("cannot be mapped", errno);
    }
  }
  MadeCache(const MadeCache&) = delete;
  MadeCache& operator=(const MadeCache&) = delete;

  std::byte* data() const override { return map_.data() + kDataOffset; }
  std::string name() const override { return name_; }
  int descriptor() const override { return descriptor_->value(); }
  size_t bytes() const override { return bytes_ - kDataOffset; }
  void require_unchanged() const override {
    if (!watched_) return;
    watched_->require_unchanged([this] {
      for (size_t entry = 0; entry < contents_.entries.size(); ++entry) {
        const WeightCache::Entry& weight = contents_.entries[entry];
        if (checksum(data() + weight.offset, weight.bytes) != sums_[entry]) return false;
      }
      return true;
    });
  }
  void finish(size_t entry) override {
    const WeightCache::Entry& weight = contents_.entries[entry];
    file_->check_not_stopped();
    sums_[entry] = checksum(data() + weight.offset, weight.bytes);
    release_pages({data() + weight.offset, weight.bytes}, {map_.data(), bytes_});
  }
  void complete() override {
    sums_.push_back(checksum(reinterpret_cast<const std::byte*>(sums_.data()), sums_.size() * sizeof(uint64_t)));
    std::memcpy(data() + contents_.bytes, sums_.data(), table_bytes(contents_.entries.size()));
    const Header header = header_of(contents_);
    std::memcpy(map_.data(), &header, sizeof header);
    if (::msync(map_.data(), bytes_, MS_SYNC) != 0) refuse("cannot be written", errno);
    if (named_) {
      file_->commit();
      watch();
    }
    file_.reset();
    ::mprotect(map_.data(), bytes_, PROT_READ);
  }

 private:
  // Nothing, where another process has already put its own file in the place of this one.
  void watch() {
    const std::optional<FileStamp> stamp = stamp_of(name_);
    struct stat mine {};
    if (stamp && ::fstat(descriptor(), &mine) == 0 && mine.st_ino == stamp->inode)
      watched_ = std::make_unique<WatchedFile>(name_, *stamp);
  }
  [[noreturn]] void refuse(const std::string& what, int error) {
    fail("weight_cache: {}: {}: {}; weight_memory= needs the packed weights on a disk", file_->path().string(), what,
         system_message(error));
  }

  WeightCache::Contents contents_;
  uint64_t bytes_;
  std::vector<uint64_t> sums_;
  bool named_;
  std::string name_;
  std::unique_ptr<WatchedFile> watched_;  // of the complete file that has a name
  std::optional<AtomicFile> file_;
  std::optional<Descriptor> descriptor_;
  FileMap map_;
};

// Throws Error when it is stopped.
void write_file(AtomicFile& file, const WeightCache::Contents& contents, const std::vector<const std::byte*>& places,
                const std::stop_token& stopped) {
  constexpr size_t kChunk = size_t{16} << 20;  // bytes between two checks whether to stop
  // Bytes between two flushes: whoever stops it waits for one of them, and not for all of the file.
  constexpr size_t kFlushed = size_t{1} << 30;
  const Descriptor disk(::open(file.temporary().c_str(), O_WRONLY | O_CLOEXEC));
  size_t unflushed = 0;
  const auto check_not_stopped = [&] {
    file.check_not_stopped();
    if (stopped.stop_requested()) fail("{}: stopped before it was complete", file.path().string());
  };
  std::vector<std::byte> first(kDataOffset);
  const Header header = header_of(contents);
  std::memcpy(first.data(), &header, sizeof header);
  file.write(first.data(), first.size());
  std::vector<uint64_t> table;
  uint64_t end = 0;  // of what has been written
  const auto fill_up_to = [&](uint64_t offset) {
    if (offset == end) return;
    const std::vector<std::byte> zeros(offset - end);
    file.write(zeros.data(), zeros.size());
    end = offset;
  };
  for (size_t i = 0; i < contents.entries.size(); ++i) {
    const WeightCache::Entry& entry = contents.entries[i];
    table.push_back(checksum(places[i], entry.bytes));
    fill_up_to(entry.offset);
    for (size_t at = 0; at < entry.bytes; at += kChunk) {
      check_not_stopped();
      const size_t bytes = std::min<size_t>(kChunk, entry.bytes - at);
      file.write(places[i] + at, bytes);
      unflushed += bytes;
      if (unflushed < kFlushed) continue;
      ::fdatasync(disk.value());  // commit() says what is wrong
      unflushed = 0;
    }
    end += entry.bytes;
  }
  fill_up_to(contents.bytes);
  table.push_back(checksum(reinterpret_cast<const std::byte*>(table.data()), table.size() * sizeof(uint64_t)));
  file.write(table.data(), table.size() * sizeof(uint64_t));
  check_not_stopped();
  file.commit();
}

}  // namespace

uint64_t WeightCache::MappedFile::begin() { return kDataOffset; }

WeightCache::WeightCache(fs::path folder, std::string name, Access access)
    : folder_(std::move(folder)), name_(std::move(name)), access_(access) {}

WeightCache::~WeightCache() { stop(); }

void WeightCache::finish(const std::function<void()>& tick) {
  constexpr std::chrono::milliseconds kBetweenTicks{100};
  {
    std::unique_lock lock(mutex_);
    wait_ticking(
        lock, written_, kBetweenTicks, [&] { return !writes_; },
        [&] {
          if (tick) tick();
        });
  }
  const std::lock_guard lock(writing_);
  if (writer_.joinable()) writer_.join();
}

void WeightCache::stop() {
  const std::lock_guard lock(writing_);
  if (!writer_.joinable()) return;
  writer_.request_stop();
  writer_.join();
}

void WeightCache::set_writes(bool writes) {
  {
    const std::lock_guard lock(mutex_);
    writes_ = writes;
  }
  written_.notify_all();
}

fs::path WeightCache::file(const Contents& contents) const {
  return folder_ / fmt::format("{}-{:016x}.weights", name_, hash_of(contents.entries));
}

void WeightCache::note(std::string text) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(text));
}

std::vector<std::string> WeightCache::take_notes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

std::unique_ptr<WeightCache::Kept> WeightCache::open(const Contents& contents, bool whole) {
  const fs::path path = file(contents);
  std::error_code code;
  static_cast<void>(fs::status(path, code));
  if (code == std::errc::no_such_file_or_directory) return nullptr;
  std::string wrong;
  try {
    auto block = std::make_unique<MappedCache>(path, whole);
    wrong = block->defect(contents);
    if (wrong.empty()) return block;
    wrong = fmt::format("{}: {}", path.string(), wrong);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  note(fmt::format("weight_cache: {}; the weights are converted again", wrong));
  return nullptr;
}

std::unique_ptr<WeightCache::Made> WeightCache::make(const Contents& contents) {
  finish();
  std::error_code code;
  fs::create_directory(folder_, code);
  if (code) fail("weight_cache: {}: cannot be made: {}", folder_.string(), code.message());
  return std::make_unique<MadeCache>(file(contents), contents, access_ == Access::kReadWrite);
}

void WeightCache::note_damaged(const Contents& contents) {
  note(fmt::format("weight_cache: {}: {}; the damaged weights are converted again", file(contents).string(), kDamaged));
}

void WeightCache::write(const Contents& contents, std::vector<const std::byte*> places) {
  if (access_ == Access::kRead || contents.entries.empty()) return;
  finish();
  const fs::path path = file(contents);
  const auto give_up = [this](const std::string& why) {
    note("weight_cache: " + why + "; the run goes on without it");
  };
  try {
    std::error_code code;
    fs::create_directory(folder_, code);
    if (code) return give_up(fmt::format("{}: cannot be made: {}", folder_.string(), code.message()));
    const uint64_t needed = header_of(contents).file_bytes, space = fs::space(folder_, code).available;
    if (!code && space < needed) {
      return give_up(fmt::format("{}: {:.3f} GB are needed, but the disk has {:.3f} GB left", folder_.string(),
                                 static_cast<double>(needed) * 1e-9, static_cast<double>(space) * 1e-9));
    }
    auto out = std::make_shared<AtomicFile>(path);
    const std::lock_guard lock(writing_);
    set_writes(true);
    writer_ = std::jthread(
        [this, contents, places = std::move(places), give_up, out](const std::stop_token& stopped) mutable {
          try {
            write_file(*out, contents, places, stopped);
          } catch (const std::exception& error) {  // out of memory, too
            if (!stopped.stop_requested()) give_up(error.what());
          }
          out.reset();  // before the thread is joined
          set_writes(false);
        });
  } catch (const std::exception& error) {  // no thread to be had, too
    set_writes(false);
    give_up(error.what());
  }
}

}  // namespace zoetrope::io
