#include "io/weights/weight_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/test_folder.h"
#include "io/weights/weight_buffer.h"

namespace zoetrope::io {
namespace {

using testing::HasSubstr;

constexpr size_t kPart = size_t{8} << 20;
// A file of parts, each filled with its number.
class WeightStreamTest : public testing::Test {
 protected:
  void make(size_t parts, size_t seldom = 0) {
    std::string bytes;
    for (size_t i = 0; i < parts + seldom; ++i) bytes.append(kPart, static_cast<char>('a' + i));
    path_ = folder_.write("weights", bytes);
    file_.emplace(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_GE(file_->value(), 0);
    bytes_ = bytes.size();
    places_ = WeightBuffer::reserved(bytes.size());
    // Of two ranges each, as the weights of a block.
    for (size_t i = 0; i < parts + seldom; ++i) {
      const std::byte* at = places_->data() + i * kPart;
      parts_.push_back({{{at + kPart / 2, kPart / 2}, {at, kPart / 2}}, i < parts});
    }
  }
  std::unique_ptr<WeightStream> stream(size_t parts_in_memory) {
    return std::make_unique<WeightStream>(file_storage(path_.string(), file_->value(), 0, places_->data()), parts_,
                                          parts_in_memory * kPart);
  }
  bool is_right(size_t part) const {
    const auto* at = reinterpret_cast<const char*>(places_->data() + part * kPart);
    return at[0] == static_cast<char>('a' + part) && at[kPart - 1] == static_cast<char>('a' + part);
  }
  // Of the memory from `begin` on, as the system counts it.
  static size_t resident_bytes(const std::byte* begin, size_t bytes) {
    const auto first = reinterpret_cast<uintptr_t>(begin);
    std::ifstream smaps("/proc/self/smaps");
    size_t sum = 0;
    bool here = false;
    for (std::string line; std::getline(smaps, line);) {
      uintptr_t from = 0, to = 0;
      char dash = 0;
      std::istringstream text(line);
      if (text >> std::hex >> from >> dash >> to && dash == '-') here = from < first + bytes && first < to;
      if (here && line.starts_with("Rss:")) sum += std::stoul(line.substr(4)) * 1024;
    }
    return sum;
  }

  TestFolder folder_;
  std::filesystem::path path_;
  std::optional<Descriptor> file_;
  size_t bytes_ = 0;
  std::unique_ptr<WeightBuffer> places_;
  std::vector<WeightStream::Part> parts_;
};

// After each read of another storage, in the thread that reads, what is in memory: nothing changes while it is counted.
class MeasuredStorage final : public WeightStream::Storage {
 public:
  MeasuredStorage(std::shared_ptr<WeightStream::Storage> storage, std::function<size_t()> resident_bytes)
      : storage_(std::move(storage)), resident_bytes_(std::move(resident_bytes)) {}
  void read(std::span<const WeightStream::Range> ranges) override {
    storage_->read(ranges);
    ++reads;
    largest = std::max<size_t>(largest, resident_bytes_());
  }
  void release(const WeightStream::Range& range) override { storage_->release(range); }
  std::atomic<int> reads = 0;
  std::atomic<size_t> largest = 0;

 private:
  std::shared_ptr<WeightStream::Storage> storage_;
  std::function<size_t()> resident_bytes_;
};

TEST_F(WeightStreamTest, NoMoreThanItsMemoryIsMapped) {
  make(10);
  const auto storage =
      std::make_shared<MeasuredStorage>(file_storage(path_.string(), file_->value(), 0, places_->data()),
                                        [&] { return resident_bytes(places_->data(), bytes_); });
  WeightStream s(storage, parts_, 4 * kPart);
  for (int pass = 0; pass < 3; ++pass) {
    for (size_t part = 0; part < 10; ++part) {
      const auto use = s.use(part);
      EXPECT_TRUE(is_right(part));
      EXPECT_LE(s.resident_bytes(), 4 * kPart);
    }
  }
  EXPECT_GE(storage->reads, 3 * 9);
  EXPECT_EQ(storage->largest, 4 * kPart);
}

TEST_F(WeightStreamTest, PartsThatStayAreReadOnce) {
  make(10);
  const auto s = stream(7);  // three places to read through
  EXPECT_EQ(s->kept_parts(), 4u);
  const auto pass = [&] {
    for (size_t part = 0; part < 10; ++part) {
      const auto use = s->use(part);
      EXPECT_TRUE(is_right(part));
    }
  };
  pass();
  const uint64_t before = s->bytes_read();
  pass();
  pass();
  // Twelve in two passes, and what is read ahead at either end.
  EXPECT_LE(s->bytes_read() - before, (12 + 3) * kPart);
  EXPECT_GE(s->bytes_read() - before, (12 - 3) * kPart);
}

TEST_F(WeightStreamTest, AllStayWhereThereIsRoom) {
  make(5, 2);
  const auto s = stream(7);
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t part = 0; part < 7; ++part) {
      const auto use = s->use(part);
      EXPECT_TRUE(is_right(part));
    }
  }
  EXPECT_EQ(s->kept_parts(), 5u);
  EXPECT_EQ(s->bytes_read(), 7 * kPart);
}

// By their own bytes: parts of 10 among others of 5, with places of 3 · 10 and 7 that may not stay.
TEST(WeightStream, AsManyStayAsFit) {
  const std::vector<size_t> parts{10, 5, 5, 5, 5, 10};
  const auto staying = [&](size_t bytes) {
    std::string text;
    for (const bool stays : WeightStream::staying(parts, 7, 10, bytes)) text += stays ? 'x' : '.';
    return text;
  };
  EXPECT_EQ(staying(47), "xxxxxx");
  EXPECT_EQ(staying(46), "..x..x");
  EXPECT_EQ(staying(44), ".....x");
  EXPECT_EQ(staying(30), "......");
  EXPECT_EQ(staying(0), "......");
}

TEST_F(WeightStreamTest, ThreadsInAnyOrderAllGoOn) {
  make(8, 4);
  const auto s = stream(2);
  std::vector<std::jthread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = 0; i < 200; ++i) {
        const size_t part = (i * (2 * thread + 1) + thread) % 12;
        const auto use = s->use(part);
        EXPECT_TRUE(is_right(part));
      }
    });
  }
  threads.clear();
  const auto use = s->use(0);
  EXPECT_TRUE(is_right(0));
}

TEST_F(WeightStreamTest, AFileThatWasCutOffIsAnError) {
  make(6);
  const auto s = stream(2);
  { const auto use = s->use(0); }
  EXPECT_FALSE(s->failed());
  std::filesystem::resize_file(path_, kPart);  // a read ahead may fail from now on
  EXPECT_THAT(error_of([&] { s->use(5); }), HasSubstr(path_.string() + ": cannot be read"));
  EXPECT_TRUE(s->failed());
  EXPECT_THAT(error_of([&] { s->use(0); }), HasSubstr("cannot be read"));
}

// Reads as slowly as it is told, and notes what.
class NotedStorage final : public WeightStream::Storage {
 public:
  explicit NotedStorage(std::chrono::microseconds each) : each_(each) {}
  void read(std::span<const WeightStream::Range> ranges) override {
    std::this_thread::sleep_for(each_);
    const std::lock_guard lock(mutex_);
    notes_ += fmt::format(" +{}", reinterpret_cast<uintptr_t>(ranges[0].begin));
  }
  void release(const WeightStream::Range& range) override {
    const std::lock_guard lock(mutex_);
    notes_ += fmt::format(" -{}", reinterpret_cast<uintptr_t>(range.begin));
  }
  bool collective() const override { return true; }
  std::string notes() const {
    const std::lock_guard lock(mutex_);
    return notes_;
  }

 private:
  const std::chrono::microseconds each_;
  mutable std::mutex mutex_;
  std::string notes_;
};

// Guesses that were wrong, jumps, parts of several sizes: ranks that compute at different speeds read alike.
TEST(WeightStream, TheOrderFollowsFromTheUsesAlone) {
  constexpr size_t kCount = 9;
  std::vector<WeightStream::Part> parts;
  for (size_t i = 0; i < kCount; ++i)
    parts.push_back({{{reinterpret_cast<const std::byte*>((i + 1) << 20), 100 + i % 3 * 20}}, i % 4 != 3});
  std::vector<size_t> uses;
  std::minstd_rand random(7);
  for (int pass = 0; pass < 6; ++pass) {
    for (size_t i = 0; i < kCount; i += 1 + random() % 2) uses.push_back(i);
    uses.push_back(random() % kCount);
  }
  for (const size_t room : {size_t{280}, size_t{450}, size_t{700}}) {
    std::vector<std::string> notes;
    for (const auto& [reading, computing] : {std::pair{0, 0}, {300, 0}, {0, 300}, {100, 100}}) {
      const auto storage = std::make_shared<NotedStorage>(std::chrono::microseconds(reading));
      WeightStream stream(storage, parts, room);
      for (const size_t part : uses) {
        const auto use = stream.use(part);
        std::this_thread::sleep_for(std::chrono::microseconds(computing));
      }
      stream.settle();
      notes.push_back(storage->notes());
    }
    for (const std::string& other : notes) EXPECT_EQ(other, notes.front());
  }
}

// One that waits for others that will not come.
class WaitingStorage final : public WeightStream::Storage {
 public:
  void read(std::span<const WeightStream::Range>) override {
    if (passes-- > 0) return;
    reads_ = true;
    reads_.notify_all();
    stopped_.wait(false);
    fail("stopped");
  }
  void release(const WeightStream::Range&) override {}
  void stop() override {
    stopped_ = true;
    stopped_.notify_all();
  }
  void started() const { reads_.wait(false); }
  int passes = 0;  // reads that do not wait

 private:
  std::atomic<bool> reads_ = false, stopped_ = false;
};

TEST(WeightStream, ItsEndEndsAReadThatWaits) {
  const std::byte memory[200] = {};
  const auto storage = std::make_shared<WaitingStorage>();
  storage->passes = 1;
  WeightStream stream(storage, {{{{memory, 100}}}, {{{memory + 100, 100}}}}, 200);
  static_cast<void>(stream.use(0));  // the read of the other part waits
  storage->started();
}

}  // namespace
}  // namespace zoetrope::io
