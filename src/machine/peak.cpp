#include "machine/peak.h"

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "zoetrope/tensor.h"

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "machine/peak_loops.h"

namespace zoetrope::machine {
namespace {

struct IsaEntry {
  Isa isa;
  const char* name;
  int64_t flop;  // of a multiply_add() of its loop; a multiply and an add count as two
  DType dtype;   // of what it multiplies
  bool (*available)();
  void (*run)(int64_t rounds);
};

constexpr IsaEntry kIsas[] = {
    {Isa::kAmxInt8, "amx_int8", 32768, DType::kI8, [] { return kernels::cpu_features().amx_int8; },
     amx_int8_multiply_adds},
    {Isa::kAvx512Vnni, "avx512_vnni", 128, DType::kI8, [] { return kernels::cpu_features().avx512_vnni; },
     avx512_vnni_multiply_adds},
    {Isa::kAvxVnni, "avx_vnni", 64, DType::kI8, [] { return kernels::cpu_features().avx_vnni; },
     avx_vnni_multiply_adds},
    {Isa::kAvx2Int8, "avx2_int8", 128, DType::kI8, [] { return kernels::cpu_features().avx2; },
     avx2_int8_multiply_adds},
    {Isa::kAmxBf16, "amx_bf16", 16384, DType::kBF16, [] { return kernels::cpu_features().amx_bf16; },
     amx_bf16_multiply_adds},
    {Isa::kAvx512Bf16, "avx512_bf16", 64, DType::kBF16, [] { return kernels::cpu_features().avx512_bf16; },
     avx512_bf16_multiply_adds},
    {Isa::kAvx512, "avx512", 32, DType::kF32, [] { return kernels::cpu_features().avx512; }, avx512_multiply_adds},
    {Isa::kAvx2, "avx2", 16, DType::kF32, [] { return kernels::cpu_features().avx2; }, avx2_multiply_adds},
};

const IsaEntry& entry(Isa isa) {
  return *std::find_if(std::begin(kIsas), std::end(kIsas), [isa](const IsaEntry& e) { return e.isa == isa; });
}

// Between two readings of the clock: 20 to 100 µs of work, a millisecond with AMX.
constexpr int64_t kRounds = 4000;

double clock_seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// What one thread did, on a cache line of its own.
struct alignas(64) Share {
  double amount = 0;
  double begin = 0, end = 0;  // wall
  double cpu = 0;
};

// Amount per second of all threads: the sum of the rates of each thread in its own time, so that late or interrupted
// threads count correctly; over the whole time if they ran one after the other (with fewer threads than requested).
double rate(const std::vector<Share>& shares) {
  double sum = 0, amount = 0, first_end = 1e300, last_begin = 0, begin = 1e300, end = 0;
  for (const Share& share : shares) {
    sum += share.amount / (share.end - share.begin);
    amount += share.amount;
    first_end = std::min(first_end, share.end);
    last_begin = std::max(last_begin, share.begin);
    begin = std::min(begin, share.begin);
    end = std::max(end, share.end);
  }
  return last_begin < first_end ? sum : amount / (end - begin);
}

// work() on every thread until `seconds` have passed, at least once; it returns what it did.
template <typename Work>
std::vector<Share> run_for(ThreadTeam& team, double seconds, Work&& work) {
  std::vector<Share> shares(static_cast<size_t>(team.size()));
  team.run([&](int thread) {
    Share& share = shares[static_cast<size_t>(thread)];
    const double cpu = thread_cpu_seconds();
    share.begin = wall_seconds();
    do {
      share.amount += work(thread);
      share.end = wall_seconds();
    } while (share.end - share.begin < seconds);
    share.cpu = thread_cpu_seconds() - cpu;
  });
  return shares;
}

// Non-temporal: sizes and addresses are multiples of 64.
void streaming_copy(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<__m256i*>(to);
  const auto* in = static_cast<const __m256i*>(from);
  for (size_t i = 0; i < bytes / sizeof(__m256i); i += 2) {
    const __m256i a = _mm256_load_si256(in + i), b = _mm256_load_si256(in + i + 1);
    _mm256_stream_si256(out + i, a);
    _mm256_stream_si256(out + i + 1, b);
  }
  _mm_sfence();
}

}  // namespace

std::vector<Isa> all_isas() {
  std::vector<Isa> result;
  for (const IsaEntry& e : kIsas) result.push_back(e.isa);
  return result;
}

const char* isa_name(Isa isa) { return entry(isa).name; }
bool isa_available(Isa isa) { return entry(isa).available(); }
bool multiplies(Isa isa, DType dtype) {
  const DType own = entry(isa).dtype;
  return own == dtype || (own == DType::kF32 && dtype == DType::kBF16);
}

Isa isa_of_kernel(std::string_view implementation) {
  for (const IsaEntry& e : kIsas) {
    if (implementation == e.name && e.dtype != DType::kI8) return e.isa;
  }
  if (implementation == "scalar") return Isa::kAvx2;
  if (implementation == "avx512_int8") return Isa::kAvx512Vnni;
  if (implementation == "avx_vnni_int8") return Isa::kAvxVnni;
  if (implementation == "avx2_int8") return Isa::kAvx2Int8;
  fail(
      "there is no peak for an implementation '{}'; there are: avx512_int8, avx_vnni_int8, avx2_int8, amx_bf16, "
      "avx512_bf16, avx512, avx2, scalar",
      implementation);
}

double wall_seconds() { return clock_seconds(CLOCK_MONOTONIC); }
double thread_cpu_seconds() { return clock_seconds(CLOCK_THREAD_CPUTIME_ID); }

Peak measure_peak(Isa isa, ThreadTeam& team, double seconds) {
  const IsaEntry& e = entry(isa);
  if (!e.available()) fail("the peak of {} cannot be measured: this CPU lacks the instructions", e.name);
  const double flop = static_cast<double>(kRounds * kPeakRound * e.flop);
  const std::vector<Share> shares = run_for(team, seconds, [&](int) {
    e.run(kRounds);
    return flop;
  });
  Peak peak{rate(shares), 0, 0};
  for (const Share& share : shares) {
    peak.cpu_flops += share.amount / share.cpu;
    peak.flop += share.amount;
  }
  return peak;
}

double measure_copy_bandwidth(int threads, size_t bytes, double seconds, CopyKind kind) {
  bytes = std::max<size_t>(64, bytes / 64 * 64);
  ThreadTeam team(threads);
  // Buffers are written by the thread that copies them, so that their pages are on its NUMA node.
  std::vector<Tensor> from(static_cast<size_t>(threads)), to(static_cast<size_t>(threads));
  team.run([&](int thread) {
    const auto t = static_cast<size_t>(thread);
    from[t] = Tensor(DType::kU8, {static_cast<int64_t>(bytes)});
    to[t] = Tensor(DType::kU8, {static_cast<int64_t>(bytes)});
    std::memset(from[t].data<char>(), 1 + thread, bytes);
    std::memset(to[t].data<char>(), 0, bytes);
  });
  auto one_copy = [&](int thread) {
    const auto t = static_cast<size_t>(thread);
    if (kind == CopyKind::kStreaming) {
      streaming_copy(to[t].data<char>(), from[t].data<char>(), bytes);
    } else {
      std::memcpy(to[t].data<char>(), from[t].data<char>(), bytes);
    }
    asm volatile("" : : "r"(to[t].data<char>()) : "memory");
    return static_cast<double>(bytes);
  };
  team.run(one_copy);  // warm: caches, TLB
  const double result = rate(run_for(team, seconds, one_copy));
  for (size_t t = 0; t < to.size(); ++t) {
    if (std::memcmp(to[t].data<char>(), from[t].data<char>(), bytes) != 0) fail("a timed copy is not a copy");
  }
  return result;
}

}  // namespace zoetrope::machine
