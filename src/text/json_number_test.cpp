#include "text/json_number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace zoetrope::text {
namespace {

// Expected values: what the `tokenizers` library 0.23.3 makes of these scores. From the ninth line on, and but for the
// lines marked, they are not the nearest double.
TEST(JsonNumbers, AreReadAsTheReferenceReadsThem) {
  const std::pair<const char*, double> cases[] = {
      {"-3.439910650253296", -0x1.b84efe0000000p+1},
      {"-10.211359977722168", -0x1.46c3760000000p+3},
      {"0.1", 0x1.999999999999ap-4},
      {"-1e-5", -0x1.4f8b588e368f1p-17},
      {"1.5E+300", 0x1.1eb2d66005835p+997},
      {"-2.2250738585072014e-308", -0x1.0000000000000p-1022},
      {"4.9e-324", 0x0.0000000000001p-1022},
      {"1e-400", 0.0},
      {"0.000000000000000000000000000000000000000001", 0x1.64cfda3281e38p-140},
      {"-14.123456789012345678", -0x1.c3f35ba6e8decp+3},
      {"-15.061187397573267", -0x1.e1f53f45f0253p+3},
      {"-3.0123284804704786", -0x1.8193faca370cdp+1},
      {"-1.2806287645399461", -0x1.47d7496604157p+0},
      {"123456789012345678901234567890.5", 0x1.8ee90ff6c373ep+96},  // the nearest
      {"12345678901234567890123e-30", 0x1.a831bd731a289p-27},       // the nearest
  };
  for (const auto& [token, value] : cases) EXPECT_EQ(reference_double(token), value) << token;
  EXPECT_TRUE(std::signbit(reference_double("-0.0")));
  EXPECT_TRUE(std::isinf(reference_double("1e309")));
}

}  // namespace
}  // namespace zoetrope::text
