// Folders that tests read: of this clone and of its build. One source alone knows where they are, so that all others
// compile to the same in every clone (ccache).
#pragma once

namespace zoetrope {

extern const char* const kSourceFolder;
extern const char* const kGoldenFolder;  // recorded runs of the reference
extern const char* const kBuildFolder;

}  // namespace zoetrope
