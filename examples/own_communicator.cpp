// Attention over a transport of the program's own: four ranks are threads that this program starts, and their messages
// are in mailboxes of this file. A program with sockets or a task system of its own implements the same functions.
// Every rank's rows of o and of the log-sum-exp must be those of one rank alone.
#include <zoetrope/attention.h>
#include <zoetrope/error.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

using namespace zoetrope;

// Messages by group of ranks, sender, receiver and number.
class Mailboxes {
 public:
  using Key = std::tuple<std::string, int, int, int>;

  void put(const Key& key, const void* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[key].assign(static_cast<const char*>(data), static_cast<const char*>(data) + bytes);
    arrived_.notify_all();
  }
  void take(const Key& key, void* data, size_t bytes, const char* operation) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, std::chrono::minutes(1), [&] { return boxes_.count(key) > 0; }))
      throw Error(std::string("no message in '") + operation + "'");
    const std::vector<char> message = std::move(boxes_.extract(key).mapped());
    if (message.size() != bytes) throw Error(std::string("a message of another size in '") + operation + "'");
    std::copy(message.begin(), message.end(), static_cast<char*>(data));
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Key, std::vector<char>> boxes_;
};

class MailCommunicator : public comm::Communicator {
 public:
  MailCommunicator(Mailboxes& mail, std::string group, std::vector<int> members, int rank)
      : mail_(mail), group_(std::move(group)), members_(std::move(members)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  int world_rank(int rank) const override { return members_[static_cast<size_t>(rank)]; }
  int ranks_in_this_process() const override { return size(); }

  // Sends are copied now and receives are taken when the caller waits, so that no order of calls can block. Numbers are
  // given now: messages of a pair of ranks match in the order they are posted, not in the order they are waited for.
  comm::Work exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives,
                      const char* operation) override {
    for (const comm::Segment& piece : sends) {
      mail_.put({group_, rank_, piece.peer, sent_[piece.peer]++}, piece.data, piece.bytes);
      if (piece.peer != rank_) counters_.bytes_sent += static_cast<int64_t>(piece.bytes);
    }
    auto arrival = std::make_unique<Arrival>(mail_, operation);
    for (const comm::Segment& piece : receives) {
      arrival->pieces.emplace_back(Mailboxes::Key{group_, piece.peer, rank_, received_[piece.peer]++}, piece);
      if (piece.peer != rank_) counters_.bytes_received += static_cast<int64_t>(piece.bytes);
    }
    return comm::Work(std::move(arrival));
  }

  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    struct Wish {
      int color, key;
    } const mine{color, key};
    std::vector<Wish> all(members_.size());
    all_gather(&mine, all.data(), sizeof mine, "split");
    std::vector<size_t> ranks;
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].color == color) ranks.push_back(i);
    std::stable_sort(ranks.begin(), ranks.end(), [&](size_t a, size_t b) { return all[a].key < all[b].key; });
    std::vector<int> members;
    int own = 0;
    for (const size_t rank : ranks) {
      if (rank == static_cast<size_t>(rank_)) own = static_cast<int>(members.size());
      members.push_back(members_[rank]);
    }
    const std::string name = group_ + "/" + std::to_string(splits_++) + ":" + std::to_string(color);
    return std::make_unique<MailCommunicator>(mail_, name, std::move(members), own);
  }

  comm::Counters counters() const override { return counters_; }
  void reset_counters() override { counters_ = {}; }
  void set_step(std::string) override {}
  void set_trace(trace::Trace*) override {}

 private:
  struct Arrival : comm::Work::Operation {
    Arrival(Mailboxes& mail, const char* operation) : mail(mail), operation(operation) {}
    void wait() override {
      for (const auto& [key, piece] : pieces) mail.take(key, piece.data, piece.bytes, operation);
    }
    Mailboxes& mail;
    const char* operation;
    std::vector<std::pair<Mailboxes::Key, comm::Segment>> pieces;
  };

  Mailboxes& mail_;
  std::string group_;
  std::vector<int> members_;  // ranks of the whole
  int rank_;
  int splits_ = 0;
  std::map<int, int> sent_, received_;  // messages by peer
  comm::Counters counters_;
};

constexpr int64_t kTokens = 501, kHeads = 4, kHeadDim = 32, kRow = kHeads * kHeadDim;

struct Result {
  std::vector<float> o = std::vector<float>(kTokens * kRow), log_sum_exp = std::vector<float>(kTokens * kHeads);
};

// What one rank does: attends its tokens and writes its rows of the result.
void attend(comm::Communicator& ranks, const attention::Strategy& strategy, Result& result) {
  std::vector<float> data[3];  // q, k, v: any function of the position, the same on every rank
  for (int which = 0; which < 3; ++which)
    for (int64_t i = 0; i < kTokens * kRow; ++i)
      data[which].push_back(std::sin(0.37f * static_cast<float>(which + 1) * static_cast<float>(i % 1009)));
  const attention::Problem problem{.tokens = kTokens, .heads = kHeads, .head_dim = kHeadDim, .log_sum_exp = true};
  attention::ContextAttention attention = attention::plan(problem, strategy, ranks, /*threads=*/1);
  const IndexRange own = attention.tokens();
  const auto rows = [&](std::vector<float>& all) {
    return TensorView(all.data() + own.begin * kRow, DType::kF32, {1, own.size(), kHeads, kHeadDim});
  };
  attention.run(rows(data[0]), rows(data[1]), rows(data[2]), {}, rows(result.o),
                TensorView(result.log_sum_exp.data() + own.begin * kHeads, DType::kF32, {1, own.size(), kHeads}));
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::fmax(largest, std::fabs(a[i] - b[i]));
  return largest;
}

int main() {
  Mailboxes mail;
  Result alone, together;
  MailCommunicator one(mail, "alone", {0}, 0);
  attend(one, {}, alone);

  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        MailCommunicator world(mail, "world", {0, 1, 2, 3}, rank);
        attend(world, {.layout = {.ulysses = 2, .ring = 2}}, together);
      } catch (const Error& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double o = largest_difference(together.o, alone.o);
  const double log_sum_exp = largest_difference(together.log_sum_exp, alone.log_sum_exp);
  std::printf("four ranks against one: o differs by %.2g, the log-sum-exp by %.2g\n", o, log_sum_exp);
  return o < 1e-5 && log_sum_exp < 1e-5 ? 0 : 1;
}
