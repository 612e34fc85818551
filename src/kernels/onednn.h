// What gemm and conv share of oneDNN: the engine, a stream a thread, scratch memory from the rank's arena, and the
// rule that float32 stays float32.
#pragma once

#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>

#include "device/stream.h"

namespace zoetrope::kernels {

// One CPU engine a process: it holds no state that changes. Streams belong to the calling (rank) thread.
const dnnl::engine& onednn_engine();
dnnl::stream& onednn_stream();

// Makes oneDNN use the rank's team from this thread; returns the number of threads that primitives will see, which is
// part of every cache key: a primitive made for n threads must run on n. So what OpenMP would not give is not asked
// for.
inline int use_team(Stream& stream) {
#ifdef ZOETROPE_STD_THREAD_TEAM
  (void)stream;
  return 1;
#else
  const int given = omp_in_parallel() != 0 ? 1 : std::min(stream.team().size(), omp_get_thread_limit());
  omp_set_num_threads(given);
  return given;
#endif
}

// While it lives, oneDNN works on the calling thread alone: for what runs on threads of another kind, where OpenMP
// would start a team of all processors for each of them.
class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
};

// Whether oneDNN takes this machine for one with all that `isa` names.
bool onednn_has(dnnl::cpu_isa isa);

// Strict float32, and scratch given by us: primitives are shared by ranks, so they must not own any.
dnnl::primitive_attr onednn_attributes();

inline dnnl::memory onednn_memory(const dnnl::memory::desc& desc, const void* data) {
  return {desc, onednn_engine(), const_cast<void*>(data)};
}

}  // namespace zoetrope::kernels
