// The style sheets of bench/page/, which are part of the program.
#pragma once

namespace zoetrope::bench {

extern const char* const kPlotStyle;  // of plots, on the page and in files of their own
extern const char* const kPageStyle;  // of the page, behind the former

}  // namespace zoetrope::bench
