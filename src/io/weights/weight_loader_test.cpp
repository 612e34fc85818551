#include "io/weights/weight_loader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "io/weights/safetensors.h"
#include "io/weights/test_files.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A checkpoint of two shards whose file order differs from the order of names: shard one holds b, a; shard two d, c.
class WeightLoaderTest : public testing::Test {
 protected:
  static constexpr int64_t kCount = 3000;  // elements: three pages, the ends shared with the neighbours

  WeightLoaderTest() {
    shard("model-00001-of-00002.safetensors", {"b", "a"});
    shard("model-00002-of-00002.safetensors", {"d", "c"});
    folder_.write("model.safetensors.index.json", R"({"weight_map": {
      "a": "model-00001-of-00002.safetensors", "b": "model-00001-of-00002.safetensors",
      "c": "model-00002-of-00002.safetensors", "d": "model-00002-of-00002.safetensors"}})");
    weights_ = std::make_shared<Weights>(checkpoint_source(Checkpoint::open(folder_.path(), "model")));
  }

  static float value(const std::string& name, int64_t i) { return static_cast<float>(name[0] * 100000 + i); }

  void shard(const char* file, const std::vector<std::string>& names) {
    std::string header = "{", data;
    for (const std::string& name : names) {
      const size_t begin = data.size();
      for (int64_t i = 0; i < kCount; ++i) {
        const float v = value(name, i);
        data.append(reinterpret_cast<const char*>(&v), sizeof v);
      }
      header += fmt::format(R"({}"{}": {{"dtype": "F32", "shape": [{}], "data_offsets": [{}, {}]}})",
                            begin == 0 ? "" : ", ", name, kCount, begin, data.size());
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    folder_.write(file, safetensors_bytes(header, data));
  }

  // Adds one to every element of every tensor, one tensor after the other.
  PackedWeight plus_one(const std::vector<std::string>& names) {
    PackedWeight weight;
    weight.names = names;
    weight.shapes.assign(names.size(), {kCount});
    weight.layout = "plus one";
    weight.bytes = names.size() * kCount * sizeof(float);
    weight.pack = [this, names](std::span<const TensorView> stored, int64_t, std::byte* out) {
      {
        const std::lock_guard lock(mutex_);
        made_.push_back(names[0]);
      }
      auto* to = reinterpret_cast<float*>(out);
      for (const TensorView& tensor : stored) {
        for (int64_t i = 0; i < tensor.size(); ++i) *to++ = tensor.data<float>()[i] + 1;
      }
    };
    return weight;
  }

  static void expect_plus_one(const std::byte* at, const std::vector<std::string>& names) {
    ASSERT_NE(at, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0u);
    const auto* values = reinterpret_cast<const float*>(at);
    for (const std::string& name : names) {
      for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(*values++, value(name, i) + 1) << name << " " << i;
    }
  }

  TestFolder folder_;
  std::shared_ptr<const Weights> weights_;
  std::mutex mutex_;
  std::vector<std::string> made_;  // first names, in the order of making
};

// As one of formulas or quantised tensors.
class UnmappedSource final : public WeightSource {
 public:
  explicit UnmappedSource(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
  bool contains(const std::string& name) const override { return source_->contains(name); }
  std::vector<std::string> names() const override { return source_->names(); }
  TensorInfo info(const std::string& name) const override { return source_->info(name); }
  std::string where(const std::string& name) const override { return source_->where(name); }
  TensorView mapped(const std::string&) const override { return {}; }
  void read(const std::string& name, const TensorView& out) const override { source_->read(name, out); }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    source_->read_range(name, range, out);
  }
  bool reads_parts(const std::string&) const override { return true; }

 private:
  std::shared_ptr<const WeightSource> source_;
};

TEST_F(WeightLoaderTest, MakesInFileOrder) {
  WeightLoader loader(weights_);
  const std::byte* places[3] = {};
  // The earliest tensor counts, not the first one named: {c, a} begins with a, behind b.
  loader.add(plus_one({"d"}), [&](const std::byte* at) { places[0] = at; });
  loader.add(plus_one({"c", "a"}), [&](const std::byte* at) { places[1] = at; });
  loader.add(plus_one({"b"}), [&](const std::byte* at) { places[2] = at; });
  loader.run(1);
  EXPECT_THAT(made_, ElementsAre("b", "c", "d"));
  expect_plus_one(places[0], {"d"});
  expect_plus_one(places[1], {"c", "a"});
  expect_plus_one(places[2], {"b"});
  EXPECT_GE(weights_->copied_bytes(), 4 * kCount * sizeof(float));
}

TEST_F(WeightLoaderTest, TicksOncePerFormOnTheCallingThread) {
  for (const int threads : {1, 2, 7}) {
    const auto weights = std::make_shared<Weights>(checkpoint_source(Checkpoint::open(folder_.path(), "model")));
    WeightLoader loader(weights);
    const std::thread::id here = std::this_thread::get_id();
    std::vector<const std::byte*> places;
    for (const char* name : {"a", "b", "c", "d"}) {
      loader.add(plus_one({name}), [&](const std::byte* at) {
        EXPECT_EQ(std::this_thread::get_id(), here);
        places.push_back(at);
      });
    }
    std::vector<int64_t> done;
    loader.run(threads, [&](int64_t bytes, int64_t total) {
      EXPECT_EQ(std::this_thread::get_id(), here);
      EXPECT_EQ(total, 4 * kCount * 4);
      EXPECT_EQ(places.size(), done.size() + 1);
      done.push_back(bytes);
    });
    EXPECT_THAT(done, ElementsAre(kCount * 4, 2 * kCount * 4, 3 * kCount * 4, 4 * kCount * 4)) << threads;
  }
}

TEST_F(WeightLoaderTest, FormsAreMadeAtTheSameTime) {
  std::atomic<int> inside = 0;
  WeightLoader loader(weights_);
  for (const char* name : {"a", "b"}) {
    PackedWeight weight = plus_one({name});
    weight.pack = [&](std::span<const TensorView>, int64_t, std::byte*) {
      ++inside;
      while (inside < 2) std::this_thread::yield();  // for ever where only one is made at a time
    };
    loader.add(std::move(weight), {});
  }
  loader.run(2);
  EXPECT_EQ(inside, 2);
}

// Rows of several tensors in a piece, and pieces of one: each row is packed once, and in its place.
TEST_F(WeightLoaderTest, RowsArePackedInPieces) {
  constexpr int64_t kRows = 300, kColumns = 2000;  // more than one piece
  for (const bool mapped : {true, false}) {
    std::vector<Tensor> tensors;
    SafetensorsWriter writer;
    for (const char* name : {"p", "q"}) {
      tensors.emplace_back(DType::kF32, Shape{kRows, kColumns});
      float* to = tensors.back().data<float>();
      for (int64_t i = 0; i < kRows * kColumns; ++i) to[i] = value(name, i);
      writer.add(name, tensors.back());
    }
    const TestFolder folder;
    writer.write(folder / "model.safetensors");
    std::shared_ptr<const WeightSource> source = checkpoint_source(Checkpoint::open(folder.path(), "model"));
    if (!mapped) source = std::make_shared<UnmappedSource>(source);
    const auto weights = std::make_shared<Weights>(source);
    std::vector<int> packed(2 * kRows);
    PackedWeight weight{{"p", "q"}, {{kRows, kColumns}, {kRows, kColumns}}, "rows", 2 * kRows * kColumns * 4, 7, {}};
    std::atomic<int> calls = 0;
    weight.pack = [&](std::span<const TensorView> stored, int64_t row, std::byte* out) {
      ++calls;
      EXPECT_EQ(row % 7, 0);
      for (const TensorView& part : stored) {
        std::memcpy(out + row * kColumns * 4, part.raw(), part.bytes());
        for (int64_t i = 0; i < part.extent(0); ++i) ++packed[static_cast<size_t>(row++)];
      }
      EXPECT_TRUE(row % 7 == 0 || row == 2 * kRows) << row;
    };
    WeightLoader loader(weights);
    const std::byte* at = nullptr;
    loader.add(weight, [&](const std::byte* place) { at = place; });
    loader.run(3);
    EXPECT_GT(calls, 3);
    EXPECT_THAT(packed, testing::Each(1));
    for (size_t i = 0; i < 2; ++i) {
      const TensorView whole = tensors[i];
      EXPECT_EQ(std::memcmp(at + i * whole.bytes(), whole.raw(), whole.bytes()), 0) << i;
    }
  }
}

// Without a cache on disk: packed when a stream asks for it, every time with the same bytes.
TEST_F(WeightLoaderTest, StreamsPackOnUse) {
  constexpr size_t kBytes = kCount * sizeof(float);
  const auto weights = std::make_shared<Weights>(checkpoint_source(Checkpoint::open(folder_.path(), "model")),
                                                 Weights::Loading{{}, {}, 6 * kBytes, {}});
  WeightLoader loader(weights);
  std::map<std::string, const std::byte*> places;
  for (const char* name : {"a", "b", "c", "d"})
    loader.add(plus_one({name}), [&places, name](const std::byte* at) { places[name] = at; });
  int ticks = 0;
  loader.run(2, [&](int64_t, int64_t) { ++ticks; });
  EXPECT_EQ(ticks, 4);
  EXPECT_THAT(made_, testing::IsEmpty());
  // `d` is in no part.
  std::vector<WeightStream::Part> parts;
  for (const char* name : {"a", "b", "c"}) parts.push_back({{{places[name], kBytes}}});
  const auto stream = weights->stream(parts);
  EXPECT_EQ(made_[0], "d");
  expect_plus_one(places["d"], {"d"});
  for (int pass = 0; pass < 3; ++pass) {
    size_t part = 0;
    for (const char* name : {"a", "b", "c"}) {
      const auto use = stream->use(part++);
      expect_plus_one(places[name], {name});
    }
  }
  const std::lock_guard lock(mutex_);
  EXPECT_GT(std::count(made_.begin(), made_.end(), "a"), 1);
  EXPECT_EQ(std::count(made_.begin(), made_.end(), "d"), 1);
}

TEST_F(WeightLoaderTest, StreamsRefuseFilesThatChange) {
  constexpr size_t kBytes = kCount * sizeof(float);
  const auto weights = std::make_shared<Weights>(checkpoint_source(Checkpoint::open(folder_.path(), "model")),
                                                 Weights::Loading{{}, {}, Weights::kFewestParts, {}});
  WeightLoader loader(weights);
  std::vector<WeightStream::Part> parts;
  for (const char* name : {"a", "b", "c", "d"})
    loader.add(plus_one({name}), [&](const std::byte* at) { parts.push_back({{{at, kBytes}}}); });
  loader.run(2);
  const auto stream = weights->stream(parts);
  { const auto use = stream->use(0); }
  // Another file takes its name: one that becomes shorter while it is mapped cannot be read.
  const std::filesystem::path path = folder_.path() / "model-00002-of-00002.safetensors",
                              other = folder_.path() / "new";
  std::filesystem::copy(path, other);
  std::filesystem::rename(other, path);
  EXPECT_THAT(error_of([&] {
                for (size_t use = 0; use < 8; ++use) stream->use(use % 4);
              }),
              HasSubstr("was changed while it was in use"));
}

TEST_F(WeightLoaderTest, KnownFormsAreNotMadeAgain) {
  const std::byte *first = nullptr, *again = nullptr, *other = nullptr;
  WeightLoader loader(weights_);
  loader.add(plus_one({"a"}), [&](const std::byte* at) { first = at; });
  loader.run(2);
  loader.add(plus_one({"a"}), [&](const std::byte* at) { again = at; });
  PackedWeight renamed = plus_one({"a"});
  renamed.layout = "another";
  loader.add(std::move(renamed), [&](const std::byte* at) { other = at; });
  int ticks = 0;
  loader.run(2, [&](int64_t, int64_t) { ++ticks; });
  EXPECT_EQ(ticks, 2);
  EXPECT_EQ(made_.size(), 2u);
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  expect_plus_one(first, {"a"});
  expect_plus_one(other, {"a"});
}

TEST_F(WeightLoaderTest, ErrorsNameWhatIsWrong) {
  WeightLoader loader(weights_);
  EXPECT_THAT(error_of([&] { loader.add(plus_one({"x"}), {}); }), HasSubstr("'x' is missing"));
  PackedWeight wrong = plus_one({"a", "b"});
  wrong.shapes[1] = {3};
  EXPECT_THAT(error_of([&] { loader.add(wrong, {}); }), AllOf(HasSubstr("'b'"), HasSubstr("[3000]"), HasSubstr("[3]")));
}

TEST_F(WeightLoaderTest, WhatCannotBeMadeEndsTheRun) {
  for (const int threads : {1, 3}) {
    WeightLoader loader(weights_);
    for (const char* name : {"a", "b", "c", "d"}) {
      PackedWeight weight = plus_one({name});
      weight.pack = [](std::span<const TensorView>, int64_t, std::byte*) { throw std::runtime_error("no"); };
      loader.add(std::move(weight), {});
    }
    EXPECT_THROW(loader.run(threads), std::runtime_error);
  }
}

TEST_F(WeightLoaderTest, TickMayGiveUp) {
  WeightLoader loader(weights_);
  for (const char* name : {"a", "b", "c", "d"}) loader.add(plus_one({name}), {});
  int ticks = 0;
  EXPECT_THAT(error_of([&] {
                loader.run(2, [&](int64_t, int64_t) {
                  if (++ticks == 2) fail("given up");
                });
              }),
              HasSubstr("given up"));
  EXPECT_EQ(ticks, 2);
}

TEST_F(WeightLoaderTest, NothingToDo) {
  WeightLoader loader(weights_);
  loader.run(4, [](int64_t, int64_t) { FAIL(); });
}

TEST(WeightLoader, MisalignedTensorsAreReadFirst) {
  const TestFolder folder;
  std::string header =
      R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  folder.write("m.safetensors", safetensors_bytes(header, std::string("\1\0\0\x80\x3f", 5)));
  const auto weights = std::make_shared<Weights>(checkpoint_source(Checkpoint::open_file(folder / "m.safetensors")));
  WeightLoader loader(weights);
  const auto form = [](const char* name) {
    return PackedWeight{{name}, {{1}}, "copy", 4, 0, [](std::span<const TensorView> stored, int64_t, std::byte* out) {
                          EXPECT_EQ(reinterpret_cast<uintptr_t>(stored[0].raw()) % 4, 0u);
                          std::memcpy(out, stored[0].raw(), 4);
                        }};
  };
  float read = 0;
  loader.add(form("b"), [&](const std::byte* at) { std::memcpy(&read, at, 4); });
  EXPECT_THAT(error_of([&] { loader.add(form("a"), {}); }), HasSubstr("stored as U8"));
  loader.run(2);
  EXPECT_EQ(read, 1.0f);
}

}  // namespace
}  // namespace zoetrope::io
