// Packed weights that are larger than memory: parts, a transformer's blocks, of which only some are in memory at a
// time. A thread reads the parts that come next while the one before is computed with. Which part follows which is
// learned from the first pass. Addresses stay as they are. What is read in which order follows from the order in which
// one thread uses parts and from nothing else, so that ranks can read together.
//
// Of memory for k parts, all but three hold the same parts for good, evenly spread over a pass, and the rest are read
// through three places: in a pass over n parts that repeats, the least recently used part is the next one wanted, so
// that a plain cache of k < n parts would read all n.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace zoetrope::io {

class WeightStream {
 public:
  // A stretch of memory.
  struct Range {
    const std::byte* begin;
    size_t bytes;
  };
  struct Part {
    std::vector<Range> ranges;
    bool may_stay = true;  // false: used too seldom to be kept for good
    size_t bytes() const;
  };
  // Where the bytes come from: a file (file_storage()), packing (pack_on_use.h), or ranks (gather_on_use.h).
  class Storage {
   public:
    virtual ~Storage() = default;
    virtual void read(std::span<const Range> ranges) = 0;  // throws Error
    virtual void release(const Range& range) = 0;          // its memory; read() makes it again
    // Of memory, besides their ranges, that reading one of the parts takes.
    virtual size_t reading_bytes(const std::vector<Part>&) const { return 0; }
    // Whether ranks must read the same parts in the same order.
    virtual bool collective() const { return false; }
    // Any thread: ends a read that waits for others.
    virtual void stop() {}
  };
  // Memory that a stream of these parts needs at least, besides what is not in any of them; and in which nothing waits
  // for what is read ahead.
  static size_t least_bytes(const std::vector<Part>& parts);
  static size_t usual_bytes(const std::vector<Part>& parts);
  // Of the parts that may stay, by their bytes and in their order, those that do with `bytes` of memory: all where it
  // holds everything, the `others` too; else as many as fit beside the places that parts of up to `largest` are read
  // through, spread evenly.
  static std::vector<bool> staying(const std::vector<size_t>& candidates, size_t others, size_t largest, size_t bytes);

  // `bytes`: memory for all parts together, at least least_bytes().
  WeightStream(std::shared_ptr<Storage> storage, std::vector<Part> parts, size_t bytes);
  WeightStream(const WeightStream&) = delete;
  WeightStream& operator=(const WeightStream&) = delete;
  ~WeightStream();

  // A part in use stays in memory.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept;
    Use& operator=(Use&&) = delete;
    ~Use();

   private:
    friend class WeightStream;
    Use(WeightStream* stream, size_t part) : stream_(stream), part_(part) {}
    WeightStream* stream_ = nullptr;
    size_t part_ = 0;
  };
  // Waits until the part is in memory. Any thread; one that uses a part must not ask for another. Throws what read()
  // of the storage threw.
  Use use(size_t part);
  // Where reads are collective, returns when all that follow from the uses so far have ended: a rank that leaves before
  // would keep others waiting.
  void settle();

  bool failed() const;  // a read has thrown: every use throws the same from then on

  size_t kept_parts() const;      // that stay for good
  size_t resident_bytes() const;  // of all parts in memory
  uint64_t bytes_read() const;    // since the beginning

 private:
  struct Entry {
    Part part;
    size_t bytes = 0;
    bool stays = false;
    bool taken = false;      // is in memory when all orders are done
    uint64_t order = 0;      // the last one that reads it
    bool in_memory = false;  // now
    int users = 0;
    uint64_t last_use = 0;
    size_t next = 0;  // the part that followed it last
  };
  // To release parts and then to read one.
  struct Order {
    std::vector<size_t> released;
    size_t part;
  };
  static constexpr size_t kNone = SIZE_MAX;

  void release(size_t part);
  void read_parts();
  bool is_present(const Entry& entry) const { return entry.taken && done_ >= entry.order; }
  std::vector<size_t> wanted() const;
  void give_orders();
  std::optional<std::vector<size_t>> room_for(size_t bytes, const std::vector<size_t>& keep) const;

  std::shared_ptr<Storage> storage_;
  size_t room_ = 0;  // for the parts that do not stay

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Entry> entries_;
  size_t current_ = kNone;  // the part asked for last
  size_t occupied_ = 0;     // of `room_`, when all orders are done
  std::deque<Order> orders_;
  uint64_t given_ = 0, done_ = 0;  // orders
  uint64_t uses_ = 0, bytes_read_ = 0;
  bool stopped_ = false;
  std::exception_ptr failure_;

  std::jthread reader_;
};

// A file, which `name` names in errors, is copied from byte `begin` on to `places`, anonymous memory. Weights that lay
// in its map, in pages of 4 kB, made steps up to 4 % longer (two Zen 5 cores); copying to huge pages costs nothing that
// can be told from noise. A file that is cut off is an error; in a map it would end the process.
std::shared_ptr<WeightStream::Storage> file_storage(std::string name, int descriptor, uint64_t begin,
                                                    std::byte* places);
// Unmaps the pages of a range and of what a page fault may have mapped around it; the next use maps them again.
void release_pages(const WeightStream::Range& range, const WeightStream::Range& mapping);
// Of anonymous memory: the pages that lie in the range as a whole, for others hold neighbours. They are zeros then.
void release_whole_pages(const WeightStream::Range& range);

}  // namespace zoetrope::io
