#include "comm/rank_test.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "comm/launcher.h"

namespace zoetrope::comm {

namespace {

class ThreadsTest : public testing::Test {
 public:
  ThreadsTest(int ranks, RankBody body, RankOptions options)
      : ranks_(ranks), body_(std::move(body)), options_(options) {}
  void TestBody() override { run_ranks(ranks_, body_, options_); }

 private:
  int ranks_;
  RankBody body_;
  RankOptions options_;
};

class MpiTest : public testing::Test {
 public:
  MpiTest(RankBody body, RankOptions options) : body_(std::move(body)), options_(options) {}
  // An exception leaves the other ranks waiting, and the tests after it out of step: the program ends, and with it,
  // by mpirun's hand, all ranks.
  void TestBody() override {
    try {
      const std::unique_ptr<Communicator> comm = mpi_world(options_);
      body_(*comm);
      comm->barrier();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "exception in the test body: %s\n", error.what());
      std::_Exit(EXIT_FAILURE);
    }
  }

 private:
  RankBody body_;
  RankOptions options_;
};

// MPI ends with the last test. Ranks other than 0 print what fails and nothing else.
class MpiEnvironment : public testing::Environment {
 public:
  void SetUp() override {
    const int rank = read_launch([](const char* name) { return std::getenv(name); }).rank;
    if (rank == 0) return;
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  void TearDown() override { finish_mpi(); }

 private:
  class FailurePrinter : public testing::EmptyTestEventListener {
   public:
    explicit FailurePrinter(int rank) : rank_(rank) {}

   private:
    void OnTestPartResult(const testing::TestPartResult& result) override {
      if (!result.failed()) return;
      const char* file = result.file_name() != nullptr ? result.file_name() : "?";
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, file, result.line_number(), result.message());
    }
    int rank_;
  };
};

}  // namespace

int register_rank_test(const char* suite, const std::string& name, const std::vector<int>& ranks, const char* file,
                       int line, const RankBody& body, const RankOptions& options) {
  const auto add = [&](const std::string& full_name, auto make) {
    testing::RegisterTest(suite, full_name.c_str(), nullptr, nullptr, file, line,
                          [make]() -> testing::Test* { return make(); });
  };
  if (launched_by_mpi()) {
    static const testing::Environment* const environment = testing::AddGlobalTestEnvironment(new MpiEnvironment);
    static_cast<void>(environment);
    for (const int n : ranks)
      if (n == launched_ranks())
        add(name + "_mpi" + std::to_string(n), [body, options] { return new MpiTest(body, options); });
    return 0;
  }
  for (const int n : ranks)
    add(name + "_threads" + std::to_string(n), [n, body, options] { return new ThreadsTest(n, body, options); });
  return 0;
}

}  // namespace zoetrope::comm
