// What a build without MPI says to those who ask for it.
#include <gtest/gtest.h>

#include "zoetrope/error.h"
#include "zoetrope/mpi.h"

namespace zoetrope::comm {
namespace {

TEST(NoMpi, SaysWhatIsMissing) {
  EXPECT_FALSE(mpi_available());
  try {
    run_mpi([](Communicator&) {});
    ADD_FAILURE() << "it ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("built without MPI"), std::string::npos);
  }
  EXPECT_THROW(mpi_world(), Error);
  EXPECT_THROW(wrap_mpi(nullptr), Error);
  EXPECT_THROW(start_mpi(), Error);
  finish_mpi();
}

}  // namespace
}  // namespace zoetrope::comm
