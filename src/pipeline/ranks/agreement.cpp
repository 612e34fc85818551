#include "pipeline/ranks/agreement.h"

#include <algorithm>
#include <new>
#include <random>
#include <sstream>
#include <vector>

#include "base/error.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kAgreement = "agreement";

// The first line in which the two differ, as a sentence.
std::string difference(int rank, const std::string& mine, const std::string& first) {
  std::istringstream a(mine), b(first);
  std::string line_a, line_b;
  while (true) {
    const bool more_a = static_cast<bool>(std::getline(a, line_a)), more_b = static_cast<bool>(std::getline(b, line_b));
    if (!more_a && !more_b) return "";
    if (!more_a) line_a = "nothing";
    if (!more_b) line_b = "nothing";
    if (line_a != line_b) {
      return fmt::format("the ranks disagree about their settings: rank {} has {} where rank 0 has {}", rank, line_a,
                         line_b);
    }
  }
}

}  // namespace

std::string broadcast_text(comm::Communicator& world, int root, std::string text, const char* operation) {
  int64_t bytes = std::ssize(text);
  world.broadcast(root, &bytes, sizeof bytes, operation);
  text.resize(static_cast<size_t>(bytes));
  world.broadcast(root, text.data(), text.size(), operation);
  return text;
}

void require_agreement(comm::Communicator& world, const std::string& values) {
  if (world.size() == 1) return;
  const std::string sentence = difference(world.rank(), values, broadcast_text(world, 0, values, kAgreement));
  const uint8_t differs = sentence.empty() ? 0 : 1;
  std::vector<uint8_t> all(static_cast<size_t>(world.size()));
  world.all_gather(&differs, all.data(), 1, kAgreement);
  for (int rank = 0; rank < world.size(); ++rank) {
    if (all[static_cast<size_t>(rank)] == 0) continue;
    throw Error(broadcast_text(world, rank, sentence, kAgreement));
  }
}

void fail_together(comm::Communicator& world, const std::string& refusal, const char* operation) {
  std::vector<int64_t> lengths(static_cast<size_t>(world.size()));
  const auto length = static_cast<int64_t>(refusal.size());
  world.all_gather(&length, lengths.data(), sizeof length, operation);
  const auto first = std::find_if(lengths.begin(), lengths.end(), [](int64_t size) { return size > 0; });
  if (first == lengths.end()) return;
  std::string words = refusal;
  words.resize(static_cast<size_t>(*first));
  world.broadcast(static_cast<int>(first - lengths.begin()), words.data(), words.size(), operation);
  throw Error(words);
}

void fail_together(comm::Communicator& world, const char* operation, const std::function<void()>& body) {
  std::string refusal;
  try {
    body();
  } catch (const std::bad_alloc&) {
    refusal = "out of memory";
  } catch (const std::exception& error) {  // of the library for JSON, too
    refusal = error.what();
  }
  fail_together(world, refusal, operation);
}

bool on_every_rank(comm::Communicator& ranks, bool mine) { return ranks.all_reduce_min(mine ? 1 : 0) > 0; }

void require_ranks(const std::optional<int64_t>& said, const comm::Communicator& world) {
  if (said && *said != world.size())
    fail("ranks={}: this job has {} ranks; leave it out or make them equal", *said, world.size());
}

int64_t agreed_seed(comm::Communicator& world, int64_t asked) {
  if (asked >= 0) return asked;
  int64_t seed = std::random_device()();
  world.broadcast(0, &seed, sizeof(seed), "seed");
  return seed;
}

}  // namespace zoetrope::pipeline
