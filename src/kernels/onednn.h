// What our products share of oneDNN: the engine, a stream a thread, the rules that it works on the calling thread and
// that float32 stays float32.
#pragma once

#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>

namespace zoetrope::kernels {

// One CPU engine a process: it holds no state that changes. Streams belong to the calling thread.
const dnnl::engine& onednn_engine();
dnnl::stream& onednn_stream();

// While it lives, oneDNN works on the calling thread alone. That holds for all that is asked of it, primitives that are
// made included: threads of OpenMP would spin in their barriers for as long as the environment says, and wait for each
// other's cores. What is worth several threads is cut into pieces for the rank's team.
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

// Strict float32, and scratch given by us: primitives are shared by threads, so they must not own any.
dnnl::primitive_attr onednn_attributes();

inline dnnl::memory onednn_memory(const dnnl::memory::desc& desc, const void* data) {
  return {desc, onednn_engine(), const_cast<void*>(data)};
}

}  // namespace zoetrope::kernels
