#include "kernels/cpu_features.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "base/words.h"

namespace zoetrope::kernels {
namespace {

constexpr unsigned kAmxBF16 = 1u << 22, kAmxInt8 = 1u << 25;  // of leaf 7's edx

// AMX registers are large, so Linux saves them only for processes that have requested permission.
bool may_use_amx(unsigned products) {
  constexpr unsigned kTile = 1u << 24;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & products) == 0 || (d & kTile) == 0) return false;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = [] {
    __builtin_cpu_init();
    CpuFeatures f;
    f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
    f.avx_vnni = f.avx2 && __builtin_cpu_supports("avxvnni");
    f.avx512_vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
    f.amx_bf16 = f.avx512_bf16 && may_use_amx(kAmxBF16);
    f.amx_int8 = f.avx512_vnni && may_use_amx(kAmxInt8);
    f.fast_bf16_dots = f.avx512_bf16 && !__builtin_cpu_is("intel");
    f.large_l2 = ::sysconf(_SC_LEVEL2_CACHE_SIZE) >= 5 * (1 << 18);
    return f;
  }();
  return features;
}

std::string cpu_model() {
  std::array<unsigned, 12> words{};
  for (unsigned i = 0; i < 3; ++i) {
    if (__get_cpuid(0x80000002 + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]) == 0) break;
  }
  std::array<char, sizeof words + 1> brand{};
  std::memcpy(brand.data(), words.data(), sizeof words);
  unsigned signature = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &signature, &b, &c, &d);
  const unsigned family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
  const unsigned model = (signature >> 4 & 0xf) | (signature >> 12 & 0xf0);
  return fmt::format("{} (family {}, model {}, stepping {})", trimmed(brand.data(), " "), family, model,
                     signature & 0xf);
}

}  // namespace zoetrope::kernels
