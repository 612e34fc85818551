#include "base/project_folders.h"

namespace zoetrope {

const char* const kSourceFolder = ZOETROPE_SOURCE_FOLDER;
const char* const kGoldenFolder = ZOETROPE_SOURCE_FOLDER "/tests/golden";
const char* const kBuildFolder = ZOETROPE_BUILD_FOLDER;

}  // namespace zoetrope
