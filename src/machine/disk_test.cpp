// How fast a disk is nobody knows here: only what is no file, and what a small one is, can be told.
#include "machine/disk.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/test_folder.h"

namespace zoetrope::machine {
namespace {

TEST(Disk, OfWhatIsNoFileNothingIsKnown) {
  const TestFolder folder;
  for (const auto& path : {folder.path(), folder.path() / "missing", folder.write("empty", "")}) {
    EXPECT_EQ(disk_bandwidth(path), 0) << path;
    EXPECT_EQ(resident_share(path), 0) << path;
  }
}

TEST(Disk, EveryFileIsReadWhateverItsLength) {
  const TestFolder folder;
  constexpr size_t kBlock = 4096, kPiece = size_t{8} << 20;
  for (const size_t length : {size_t{1}, kBlock - 1, kBlock, kBlock + 1, kPiece, kPiece + 5, 2 * kPiece + kBlock}) {
    const auto path = folder.write("file", std::string(length, 'w'));
    const double rate = disk_bandwidth(path);
    EXPECT_GT(rate, 0) << length;
    EXPECT_TRUE(std::isfinite(rate)) << length;
  }
}

TEST(Disk, AFileThatWasJustReadIsInMemory) {
  const TestFolder folder;
  const auto path = folder.write("file", std::string(size_t{1} << 20, 'w'));
  std::ifstream file(path, std::ios::binary);
  const std::string read((std::istreambuf_iterator<char>(file)), {});
  const double share = resident_share(path);
  EXPECT_GT(share, 0);
  EXPECT_LE(share, 1);
}

}  // namespace
}  // namespace zoetrope::machine
