#include "comm/mpi/library_settings.h"

#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "comm/launcher.h"

namespace zoetrope::comm::mpi {
namespace {

// For where messages go through shared memory in fragments, a few a call of the library, each of which the other end
// has to answer. 4 ranks on 2 cores, 16 MB and 20 ms of kernel a hop, share of the run spent waiting (median, while
// others used the machine too): 0.50 with fragments of 32 KB, the default; 0.51 with 128 KB, 0.32 to 0.41 with 256 KB,
// 0.19 with 512 KB, 0.03 to 0.09 with 1 MB. The library starts only where its segment, 4 MB by default, holds them all.
void choose_fragments() {
  constexpr const char* kFragment = "OMPI_MCA_btl_vader_max_send_size";
  constexpr const char* kSegment = "OMPI_MCA_btl_vader_segment_size";
  constexpr uint64_t kFragmentBytes = uint64_t{1} << 20, kSegmentBytes = uint64_t{16} << 20;
  if (std::getenv(kFragment) != nullptr || std::getenv(kSegment) != nullptr) return;
  struct statvfs memory {};
  if (statvfs("/dev/shm", &memory) != 0) return;
  const uint64_t needed = 2 * kSegmentBytes * static_cast<uint64_t>(launched_ranks());
  if (uint64_t{memory.f_bavail} * memory.f_frsize < needed) return;
  setenv(kFragment, std::to_string(kFragmentBytes).c_str(), /*overwrite=*/0);
  setenv(kSegment, std::to_string(kSegmentBytes).c_str(), /*overwrite=*/0);
}

// Open MPI copies between processes with process_vm_readv without asking whether this container allows it, and then
// prints an error a message. Asked here, before it starts; the user can override it by setting the variable.
void choose_copy_mechanism() {
  constexpr const char* kMechanism = "OMPI_MCA_btl_vader_single_copy_mechanism";
  const char source = 1;
  char destination = 0;
  iovec local{&destination, 1};
  iovec remote{const_cast<char*>(&source), 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1) setenv(kMechanism, "none", /*overwrite=*/0);
  const char* chosen = std::getenv(kMechanism);
  if (chosen != nullptr && std::string(chosen) == "none") choose_fragments();
}

// By default the receiver of a long TCP message asks for it piece by piece, and what it asks queues behind its own
// message in the connection, so that an exchange in both directions takes turns, now and then or throughout. Without
// that way (put) the sender sends on by itself. Four hosts with links of 83 to 93 Mbit/s, U2 R2, for which 2.7 to 3.0 s
// would fill the links: 3.4 s (median of six) so, 3.6 to 3.7 s asking for pieces of 128 KB; an all-to-all of 16 MB a
// rank that would take 0.84 s took 1.66 s by default. The user can override it by setting the variable.
void choose_tcp_protocol() {
  constexpr int kSend = 1, kInplace = 8, kNeedAck = 16, kNeedChecksum = 32, kHeterogeneousRdma = 256;  // btl.h
  constexpr int kWithoutPut = kSend | kInplace | kNeedAck | kNeedChecksum | kHeterogeneousRdma;
  setenv("OMPI_MCA_btl_tcp_flags", std::to_string(kWithoutPut).c_str(), /*overwrite=*/0);
}

}  // namespace

void choose_library_settings() {
  choose_copy_mechanism();
  choose_tcp_protocol();
}

}  // namespace zoetrope::comm::mpi
