// Context-parallel attention inside an MPI program, over a communicator of its own:
//
//   mpirun -n 3 mpi_attention
//
// Rank 0 keeps out of it where there are more than two ranks, as a program's reader or writer might; the others hold
// the sequence in shards. Every rank checks its rows against attention computed alone.
#include <mpi.h>
#include <zoetrope/attention.h>
#include <zoetrope/error.h>
#include <zoetrope/mpi.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

using namespace zoetrope;

constexpr int64_t kTokens = 257, kHeads = 4, kHeadDim = 32, kRow = kHeads * kHeadDim;

// Any function of the position will do: what matters is that all ranks agree on it.
std::vector<float> values(int which) {
  std::vector<float> all(kTokens * kRow);
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = std::sin(0.37f * static_cast<float>(which + 1) * static_cast<float>(i % 1009));
  return all;
}

// The rows of [1, tokens, heads, head_dim] that begin at `first`.
TensorView rows(std::vector<float>& data, int64_t first, int64_t count) {
  return {data.data() + first * kRow, DType::kF32, {1, count, kHeads, kHeadDim}};
}

double largest_difference(comm::Communicator& ranks, const attention::Strategy& strategy) {
  std::vector<float> q = values(0), k = values(1), v = values(2), alone(q.size()), mine(q.size());
  const attention::Problem problem{.tokens = kTokens, .heads = kHeads, .head_dim = kHeadDim};
  attention::ContextAttention attention = attention::plan(problem, strategy, ranks, /*threads=*/1);
  const int64_t first = attention.tokens().begin, count = attention.tokens().size();
  attention.run(rows(q, first, count), rows(k, first, count), rows(v, first, count), {}, rows(mine, first, count));

  const std::unique_ptr<comm::Communicator> self = ranks.split(/*color=*/ranks.rank(), /*key=*/0);
  attention::ContextAttention whole = attention::plan(problem, {}, *self, 1);
  whole.run(rows(q, 0, kTokens), rows(k, 0, kTokens), rows(v, 0, kTokens), {}, rows(alone, 0, kTokens));
  double largest = 0;
  for (int64_t i = first * kRow; i < (first + count) * kRow; ++i)
    largest = std::fmax(largest, std::fabs(mine[static_cast<size_t>(i)] - alone[static_cast<size_t>(i)]));
  std::printf("rank %d of %d: tokens %lld to %lld, %lld bytes sent, largest difference %.2g\n", ranks.rank(),
              ranks.size(), static_cast<long long>(first), static_cast<long long>(first + count),
              static_cast<long long>(attention.counters().ulysses.bytes_sent + attention.counters().ring.bytes_sent),
              largest);
  return largest;
}

int main(int argc, char** argv) {
  int provided = 0, rank = 0, size = 0, failed = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const bool takes_part = size <= 2 || rank > 0;
  MPI_Comm workers = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, takes_part ? 0 : 1, rank, &workers);
  try {
    // The first use of MPI is collective over all processes; rank 0 wraps its communicator of one.
    const std::unique_ptr<comm::Communicator> ranks = comm::wrap_mpi(&workers);
    if (takes_part) {
      const attention::Strategy ring{.layout = {.ring = ranks->size()}, .softmax = attention::Softmax::kFixedMax};
      failed = largest_difference(*ranks, ring) < 1e-5 ? 0 : 1;
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  comm::finish_mpi();
  MPI_Comm_free(&workers);
  MPI_Finalize();
  return failed;
}
