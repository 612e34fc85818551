// One Model per process of an MPI job: what fails in one process ends the call in all, and the next call works.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "zoetrope/model.h"

#include "base/error.h"
#include "comm/launcher.h"
#include "comm/rank_test.h"
#include "pipeline/test_model.h"

namespace zoetrope {
namespace {

class FailingSink final : public FrameSink {
 public:
  void add_frame(const uint8_t*) override {}
  void finish() override { throw Error("the disk is full"); }
};

// What the call of this process throws, with the type of what a callback may throw in front.
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::bad_alloc&) {
    return "bad_alloc";
  } catch (const Error& error) {
    return std::string("Error: ") + error.what();
  } catch (const std::runtime_error& error) {
    return std::string("runtime_error: ") + error.what();
  }
  return "";
}

void failures_end_calls(comm::Communicator& comm) {
  const int last = comm.size() - 1, me = comm.rank();
  ModelOptions options;
  options.threads = 1;
  options.strategy.deterministic = true;
  options.fsdp_parallelism = comm.size();  // kept weights gather from others
  options.keep_weights = KeepWeights::kAll;
  Model model = Model::open(pipeline::recorded_model("wan21_t2v"), options);
  const Request request = pipeline::small_run();
  const Video whole = model.generate(request);
  // `own`: what the rank throws that fails, and `why` in words.
  const auto expect = [&](int failing, const std::string& own, const std::string& why,
                          const std::function<void()>& call) {
    SCOPED_TRACE(why);
    const std::string others = "Error: rank " + std::to_string(failing) + " failed: " + why;
    EXPECT_EQ(thrown_by(call), me == failing ? own : others);
    const Video again = model.generate(request);
    EXPECT_EQ(std::memcmp(again.latents.view().raw(), whole.latents.view().raw(), whole.latents.view().bytes()), 0);
    ASSERT_EQ(again.frames.view().bytes(), whole.frames.view().bytes());
    if (me == 0) {
      EXPECT_EQ(std::memcmp(again.frames.view().raw(), whole.frames.view().raw(), whole.frames.view().bytes()), 0);
    }
  };
  Callbacks callbacks;
  callbacks.step = [](int64_t done, int64_t, double) {
    if (done == 1) throw std::runtime_error("the window was closed");
  };
  expect(0, "runtime_error: the window was closed", "the window was closed",
         [&] { model.generate(request, callbacks); });
  callbacks.step = {};
  int asked = 0;
  callbacks.cancelled = [&]() -> bool {
    if (me == last && ++asked > 3) throw std::bad_alloc();
    return false;
  };
  expect(last, "bad_alloc", "out of memory", [&] { model.generate(request, callbacks); });
  // The others have done their part by then.
  expect(0, "Error: the disk is full", "the disk is full",
         [&] { model.generate(request, [](const VideoFormat&) { return std::make_unique<FailingSink>(); }); });
}

// What no key says, and still every rank must do.
void differences_end_calls(comm::Communicator& comm) {
  const int last = comm.size() - 1;
  if (last == 0) return;
  const bool other = comm.rank() == last;
  ModelOptions options;
  options.threads = 1;
  options.comm_timeout = 10;  // a difference that is not seen ends here
  Model model = Model::open(pipeline::recorded_model("wan21_t2v"), options);
  const Request request = pipeline::small_run();
  const auto expect = [&](const std::string& has, const std::string& where, const std::function<void()>& call) {
    EXPECT_EQ(thrown_by(call), "Error: the ranks disagree about their settings: rank " + std::to_string(last) +
                                   " has " + has + " where rank 0 has " + where);
  };
  expect("decode=false (latents alone)", "decode=true (frames)", [&] {
    Request mine = request;
    mine.decode = !other;
    model.generate(mine);
  });
  expect("no callback that sees latents", "a callback that sees latents", [&] {
    Callbacks callbacks;
    if (!other) callbacks.latents = [](int64_t, double, const TensorView&) {};
    model.generate(request, callbacks);
  });
  expect("1 video in a call", "2 videos in a call",
         [&] { model.generate(std::vector<Request>(other ? 1 : 2, request)); });
}

int register_over_mpi(const char* name, const comm::RankBody& body) {
  if (!comm::launched_by_mpi()) return 0;
  return comm::register_rank_test("ModelOverMpi", name, comm::kTestRanks, __FILE__, __LINE__, body);
}
[[maybe_unused]] const int kRegistered[] = {
    register_over_mpi("WhatFailsOnOneRankEndsTheCallOnAll", failures_end_calls),
    register_over_mpi("WhatDiffersBetweenRanksEndsTheCallOnAll", differences_end_calls)};

}  // namespace
}  // namespace zoetrope
