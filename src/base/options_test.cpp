#include "base/options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "zoetrope/error.h"

#include "base/error.h"
#include "base/test_folder.h"

namespace zoetrope {
namespace {

using testing::HasSubstr;

struct Example {
  std::string prompt, lines;
  int64_t height = 480;
  std::optional<double> flow_shift;
  std::string dtype = "bf16";
  bool loud = false;
  int64_t tile_rows = 0, tile_columns = 0;
  std::vector<double> sigmas;
  OptionSet set;
  Example() {
    set.text("prompt", prompt, "what to show")
        .integer("height", height, {16, 8192}, "pixels")
        .number("flow_shift", flow_shift, {0.01, 100}, "shift")
        .dtype("dtype", dtype, "of the transformer")
        .flag("loud", loud, "say more")
        .sizes("tile", {{"rows", &tile_rows}, {"columns", &tile_columns}}, "of a tile", {"columns", "planes", "fused"})
        .numbers("sigmas", sigmas, {0, 1}, "noise levels")
        .lines("lines", lines, "texts")
        .alias("hoehe", "height")
        .unavailable("lora", {"", "none"}, "LoRA is not built yet");
  }
  std::string refusal(const char* argument) {
    try {
      set.set_argument(argument);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST(Options, ParsesEveryTypeAndRemembersWhereFrom) {
  Example e;
  for (const char* argument : {"prompt=a=b c", "hoehe=64", "flow_shift=3.5", "dtype=float32", "loud=true", "lora="}) {
    e.set.set_argument(argument);
  }
  EXPECT_EQ(e.prompt, "a=b c");
  EXPECT_EQ(e.height, 64);
  EXPECT_EQ(e.flow_shift, 3.5);
  EXPECT_EQ(e.dtype, "float32");
  EXPECT_TRUE(e.loud);
  EXPECT_EQ(e.set.origin("height"), "command line");
}

TEST(Options, ListsOfNumbers) {
  Example e;
  const std::vector<double> expected = {1, 0.75, 0.5};
  for (const char* argument : {"sigmas=1,0.75,0.5", "sigmas=[1, 0.75, 0.5]", "sigmas= 1.0 ,0.75, 5e-1 "}) {
    e.sigmas.clear();
    e.set.set_argument(argument);
    EXPECT_EQ(e.sigmas, expected) << argument;
  }
  EXPECT_THAT(e.set.values(), HasSubstr("sigmas=1,0.75,0.5\n"));
  EXPECT_THAT(e.refusal("sigmas=1,,0.5"), HasSubstr("value 2: '' is not a finite number"));
  EXPECT_THAT(e.refusal("sigmas=1,"), HasSubstr("value 2"));
  EXPECT_THAT(e.refusal("sigmas=1;0.5"), HasSubstr("value 1: '1;0.5' is not a finite number"));
  EXPECT_THAT(e.refusal("sigmas=1,2"), HasSubstr("value 2: 2 is out of range; 0 to 1 is allowed"));
  EXPECT_THAT(e.refusal("sigmas=nan"), HasSubstr("not a finite number"));
  EXPECT_EQ(e.sigmas, expected);
  e.set.set_argument("sigmas=");
  EXPECT_TRUE(e.sigmas.empty());
}

TEST(Options, YamlSequence) {
  const std::string path = testing::TempDir() + "options_sequence.yml";
  Example e;
  std::ofstream(path) << "sigmas: [1, 0.5]\n";
  e.set.load_yaml(path);
  EXPECT_EQ(e.sigmas, (std::vector<double>{1, 0.5}));
  std::ofstream(path) << "sigmas:\n- 0.25\n- 0.125\n";
  e.set.load_yaml(path);
  EXPECT_EQ(e.sigmas, (std::vector<double>{0.25, 0.125}));
  std::ofstream(path) << "lines: [a, \" \"]\n";
  EXPECT_THAT(error_of([&] { e.set.load_yaml(path); }), HasSubstr("line 1: the list has an empty text"));
  std::ofstream(path) << "sigmas: [[1], 0.5]\n";
  EXPECT_THROW(e.set.load_yaml(path), Error);
  std::ofstream(path) << "height: [1, 0.5]\n";
  EXPECT_THROW(e.set.load_yaml(path), Error);
}

TEST(Options, RefusesWithOneSentenceThatSaysWhatWouldBeRight) {
  Example e;
  EXPECT_THAT(e.refusal("heigth=64"), HasSubstr("did you mean 'height'"));
  EXPECT_THAT(e.refusal("height=64.5"), HasSubstr("not a whole number"));
  EXPECT_THAT(e.refusal("height=8"), HasSubstr("16 to 8192"));
  EXPECT_THAT(e.refusal("height=9223372036854775808"), HasSubstr("9223372036854775808 is out of range; 16 to 8192"));
  EXPECT_THAT(e.refusal("height=-9223372036854775809"), HasSubstr("is out of range; 16 to 8192"));
  EXPECT_THAT(e.refusal("height=99999999999999999999x"), HasSubstr("not a whole number"));
  EXPECT_THAT(e.refusal("flow_shift=nan"), HasSubstr("finite"));
  EXPECT_THAT(e.refusal("dtype=fp8"), HasSubstr("bf16, float32"));
  EXPECT_THAT(e.refusal("loud=maybe"), HasSubstr("true nor false"));
  EXPECT_THAT(e.refusal("lora=x.safetensors"), HasSubstr("not built yet"));
  EXPECT_THAT(e.refusal("height"), HasSubstr("key=value"));
  EXPECT_EQ(e.height, 480);
}

TEST(Options, ReadsYamlAndTheLaterWins) {
  const std::string path = testing::TempDir() + "options.yml";
  std::ofstream(path) << "# sizes\nheight: 128\nprompt: \"a: b\"\n";
  Example e;
  e.set.load_yaml(path);
  e.set.set_argument("height=256");
  EXPECT_EQ(e.height, 256);
  EXPECT_EQ(e.prompt, "a: b");
  EXPECT_THAT(e.set.origin("prompt"), HasSubstr("options.yml line 3"));
}

TEST(Options, DefaultTakesBackWhatWasSet) {
  const std::string path = testing::TempDir() + "options_default.yml";
  std::ofstream(path) << "height: 128\nflow_shift: 3\nprompt: a cat\nloud: true\nsigmas: [1, 0.5]\ntile: {rows: 8}\n";
  Example e;
  e.set.load_yaml(path);
  for (const char* key : {"hoehe", "flow_shift", "prompt", "loud", "sigmas", "tile", "dtype", "lora"})
    e.set.set_argument(fmt::format("{}=default", key));
  EXPECT_EQ(e.set.values(), Example().set.values());
  EXPECT_FALSE(e.flow_shift.has_value());
  EXPECT_EQ(e.set.origin("height"), "");
  std::ofstream(path) << "height: default\n";
  e.set.set_argument("height=256");
  e.set.load_yaml(path);
  EXPECT_EQ(e.height, 480);
}

TEST(Options, WhatComesWithAValueGoesWithIt) {
  for (const auto brought : {OptionSet::Brought::kAll, OptionSet::Brought::kUnset}) {
    Example e;
    e.set.accompanied("prompt", brought, [](std::string_view value) {
      return value == "tall" ? OptionSet::Settings{{"height", "960"}, {"flow_shift", kDefaultValue}}
                             : OptionSet::Settings();
    });
    const bool all = brought == OptionSet::Brought::kAll;
    EXPECT_FALSE(e.set.is_given("height"));
    e.set.set_argument("prompt=tall");
    EXPECT_EQ(e.height, 960);
    e.set.set_argument("prompt=short");
    EXPECT_EQ(e.height, 480);
    EXPECT_TRUE(e.set.is_given("height"));
    // What was there before comes back, and what was said since stays, also where it is the default.
    e.set.set_argument("height=128");
    e.set.set_argument("flow_shift=3");
    e.set.set_argument("prompt=tall");
    EXPECT_EQ(e.height, all ? 960 : 128);
    EXPECT_EQ(e.flow_shift.has_value(), !all);
    e.set.set_argument("flow_shift=default");
    e.set.set_argument("prompt=short");
    EXPECT_EQ(e.height, 128);
    EXPECT_FALSE(e.flow_shift.has_value());
  }
}

TEST(Options, ProseMayBeTheWordDefault) {
  std::string prompt = "a cat", name = "x";
  OptionSet set;
  set.prose("prompt", prompt, "what to show").text("name", name, "of the file");
  set.set_argument("prompt=default");
  set.set_argument("name=y");
  set.set_argument("name=default");
  EXPECT_EQ(prompt, "default");
  EXPECT_EQ(name, "x");
  const std::string path = testing::TempDir() + "options_prose.yml";
  std::ofstream(path) << "prompt: default\n";
  prompt.clear();
  set.load_yaml(path);
  EXPECT_EQ(prompt, "default");
}

TEST(Options, AnErrorSaysWhereEachValueThatItNamesWasWritten) {
  const std::string path = testing::TempDir() + "options_origins.yml";
  std::ofstream(path) << "height: 128\nflow_shift: 3.5\n";
  Example e;
  e.set.load_yaml(path);
  e.set.set_argument("prompt=a red cat");
  const auto place = [&](int line) { return fmt::format(" ({} line {})", path, line); };
  EXPECT_EQ(e.set.with_origins("height=128 does not go with flow_shift=3.5, and prompt=a red cat"),
            "height=128" + place(1) + " does not go with flow_shift=3.5" + place(2) +
                ", and prompt=a red cat (command line)");
  EXPECT_EQ(e.set.with_origins("flow_shift: this model has none"), "flow_shift" + place(2) + ": this model has none");
  // Other values, longer names and longer values, keys that nobody set, and the word by itself.
  for (const char* other : {"use height=64", "max_height=128", "height=1280", "height=128.5", "dtype=bf16: no",
                            "the height: it is wrong", "what_if.height=128"})
    EXPECT_EQ(e.set.with_origins(other), other);
  EXPECT_EQ(e.set.with_origins("height=64 or height=128"), "height=64 or height=128" + place(1));
}

TEST(Options, SizesAreNamedNumbers) {
  Example e;
  const auto sizes = [&] { return std::pair<int, int>(e.tile_rows, e.tile_columns); };
  e.set.set_argument("tile={ rows: 8, columns: 4 }");
  EXPECT_EQ(sizes(), std::pair(8, 4));
  e.set.set_argument("tile=columns:16");
  EXPECT_EQ(sizes(), std::pair(0, 16));
  EXPECT_THAT(e.set.values(), HasSubstr("tile=columns:16\n"));
  EXPECT_THAT(e.refusal("tile=rows:8,depth:2"), HasSubstr("'depth' is unknown; one of: rows, columns"));
  EXPECT_THAT(e.refusal("tile=rows:0"), HasSubstr("rows: 0 is too small; 1 is the least"));
  EXPECT_THAT(e.refusal("tile=rows:8,rows:9"), HasSubstr("rows is given twice"));
  e.set.set_argument("tile=rows:2,columns:4,planes:-1,fused:False");
  EXPECT_EQ(sizes(), std::pair(2, 0));
  e.set.set_argument("tile=columns:16");
  EXPECT_THAT(e.refusal("tile=8"), HasSubstr("'8' is not of the form name:number; names: rows, columns"));
  EXPECT_EQ(sizes(), std::pair(0, 16));
  e.set.set_argument("tile=");
  EXPECT_EQ(sizes(), std::pair(0, 0));
  const std::string path = testing::TempDir() + "sizes.yml";
  for (const char* text : {"tile: {rows: 8, columns: 4}", "tile:\n  rows: 8\n  columns: 4", "tile: {rows:8, columns:4}",
                           "tile: \"rows:8,columns:4\""}) {
    std::ofstream(path) << text << "\n";
    e.tile_rows = e.tile_columns = 0;
    e.set.load_yaml(path);
    EXPECT_EQ(sizes(), std::pair(8, 4)) << text;
  }
  std::ofstream(path) << "height: {rows: 8}\n";
  EXPECT_THROW(e.set.load_yaml(path), Error);
}

TEST(Options, YamlErrorsNameFileAndLine) {
  const std::string path = testing::TempDir() + "bad.yml";
  const auto refusal = [&](const char* text) {
    std::ofstream(path) << text;
    Example e;
    try {
      e.set.load_yaml(path);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal("height: 64\nwidht: 3\n"), HasSubstr("bad.yml line 2"));
  EXPECT_THAT(refusal("height: [1, 2\n"), HasSubstr("not YAML"));
  EXPECT_THAT(refusal("height: [1, 2]\n"), HasSubstr("single"));
  EXPECT_THAT(refusal("just text"), HasSubstr("key: value"));
  Example e;
  EXPECT_THROW(e.set.load_yaml("/nowhere/x.yml"), Error);
}

TEST(Options, DtypesGoByAnyOfTheirNames) {
  Example e;
  for (const char* name : {"fp32", "f32", "float32"}) {
    e.dtype = "";
    e.set.set_argument(fmt::format("dtype={}", name));
    EXPECT_EQ(e.dtype, "float32") << name;
  }
  for (const char* name : {"bf16", "bfloat16"}) {
    e.dtype = "";
    e.set.set_argument(fmt::format("dtype={}", name));
    EXPECT_EQ(e.dtype, "bf16") << name;
  }
  EXPECT_EQ(e.refusal("dtype=fp16"), "command line: dtype=fp16: 'fp16' is unknown; one of: bf16, float32");
}

TEST(Options, SaysWhereTheKeysAreListed) {
  Example e;
  EXPECT_EQ(e.refusal("qqqq=1"), "command line: unknown key 'qqqq'; --help lists the keys");
  EXPECT_THAT([&] { e.set.set("qqqq", "1", "call"); },
              testing::ThrowsMessage<Error>("call: unknown key 'qqqq'; docs/configuration.md lists the keys"));
}

TEST(Options, SuggestsWhatANameOfOtherProgramsIsCalledHereAndNothingFar) {
  const std::vector<std::string> keys = {"timesteps", "num_inference_steps", "seed",  "trace",          "num_frames",
                                         "width",     "guidance_scale",      "cache", "negative_prompt"};
  EXPECT_EQ(nearest_name("steps", keys), "num_inference_steps");
  EXPECT_EQ(nearest_name("step", keys), "num_inference_steps");
  EXPECT_EQ(nearest_name("frames", keys), "num_frames");
  EXPECT_EQ(nearest_name("cfg", keys), "guidance_scale");
  EXPECT_EQ(nearest_name("neg", keys), "negative_prompt");
  EXPECT_EQ(nearest_name("euler", {"unipc", "flow_match_euler"}), "flow_match_euler");
  EXPECT_EQ(nearest_name("steps", {"timesteps", "shape"}), "");  // theirs, but not of these
  EXPECT_EQ(nearest_name("bfloat16", {"bf16x", "float32"}), "");
  EXPECT_EQ(nearest_name("device", keys), "");
  EXPECT_EQ(nearest_name("widht", keys), "width");  // two neighbours, one edit
  EXPECT_EQ(nearest_name("sede", keys), "seed");
  EXPECT_EQ(nearest_name("negativ_prompt", keys), "negative_prompt");
}

TEST(Options, KeysOfOtherProgramsAreTranslatedIgnoredOrRefused) {
  using Settings = OptionSet::Settings;
  Example e;
  e.set.ignored({"jit", "mesh"})
      .translated("size",
                  [](std::string_view value) -> std::optional<Settings> {
                    if (value == "any") return std::nullopt;
                    if (value.size() != 2) fail("two letters are a size");
                    return Settings{{"height", std::string(value)}, {"loud", "true"}};
                  })
      .ignored_beside("jit", "dtype", {"int8"})
      .or_list("prompt");
  e.set.set_argument("size=64");
  EXPECT_EQ(e.height, 64);
  EXPECT_TRUE(e.loud);
  EXPECT_EQ(e.set.origin("height"), "command line, as size");
  EXPECT_EQ(e.refusal("size=1234"), "command line: size=1234: two letters are a size");
  EXPECT_THAT(e.refusal("size=08"), HasSubstr("command line, as size: height=08: 8 is out of range"));
  EXPECT_TRUE(e.set.ignored_keys().empty());
  e.set.set_argument("size=any");
  e.set.set_argument("jit=false");
  EXPECT_EQ(e.refusal("lora=none"), "");
  EXPECT_THAT(e.set.help(), testing::Not(testing::AnyOf(HasSubstr("jit"), HasSubstr("size"))));
  EXPECT_THAT(e.refusal("jti=false"), testing::Not(HasSubstr("did you mean")));
  const std::string path = testing::TempDir() + "others.yml";
  std::ofstream(path) << "mesh: [[a, {b: null}]]\njit: {}\ndtype: int8\nprompt: [a, b]\n";
  e.set.load_yaml(path);
  EXPECT_THAT(e.set.ignored_keys(), testing::ElementsAre("size", "jit", "mesh", "dtype"));
  EXPECT_EQ(e.dtype, "bf16");
  EXPECT_EQ(e.prompt, "a,b");
  std::ofstream(path) << "dtype: int8\n";
  EXPECT_THROW(e.set.load_yaml(path), Error);
}

TEST(Options, HelpNamesEveryKeyOnceAndNoAlias) {
  Example e;
  EXPECT_THAT(e.set.help(), HasSubstr("height"));
  EXPECT_THAT(e.set.help(), testing::Not(HasSubstr("hoehe")));
  EXPECT_THAT(e.set.markdown(), HasSubstr("| `dtype` |"));
}

}  // namespace
}  // namespace zoetrope
