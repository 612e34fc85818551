#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/input_file.h"
#include "base/test_folder.h"

namespace zoetrope {
namespace {

using testing::AllOf;
using testing::HasSubstr;

JsonObject parse(const std::string& text) { return JsonObject::parse(text, "c.json"); }

TEST(Json, ReadsEveryType) {
  const auto object = parse(
      R"({"n": 40, "x": 2.5, "whole": 3, "s": "silu", "b": true, "null": null, "list": [1, 2, 2], "reals": [1, 0.5],
          "class": ["diffusers", "Wan"], "absent": [null, null], "inner": {"k": 7}, "many": [{"a": 1}, {"a": 2}]})");
  EXPECT_EQ(object.get<int64_t>("n"), 40);
  EXPECT_EQ(object.get<double>("x"), 2.5);
  EXPECT_EQ(object.get<double>("whole"), 3.0);
  EXPECT_EQ(object.get<std::string>("s"), "silu");
  EXPECT_TRUE(object.get<bool>("b"));
  EXPECT_EQ(object.get<std::vector<int64_t>>("list"), (std::vector<int64_t>{1, 2, 2}));
  EXPECT_EQ(object.get<std::vector<double>>("reals"), (std::vector<double>{1, 0.5}));
  EXPECT_EQ(object.get<std::vector<std::string>>("class"), (std::vector<std::string>{"diffusers", "Wan"}));
  using Nullable = std::vector<std::optional<std::string>>;
  EXPECT_EQ(object.get<Nullable>("absent"), (Nullable{std::nullopt, std::nullopt}));
  EXPECT_EQ(object.object("inner").get<int64_t>("k"), 7);
  EXPECT_EQ(object.object("inner").path(), "c.json: inner");
  EXPECT_EQ(object.path(), "c.json");
  EXPECT_FALSE(object.find_object("nothing").has_value());
  EXPECT_EQ(object.objects("many").at(1).get<int64_t>("a"), 2);
  EXPECT_FALSE(object.has("null"));
  EXPECT_EQ(object.get<int64_t>("null", 5), 5);
  EXPECT_EQ(object.find<int64_t>("nothing"), std::nullopt);
  EXPECT_EQ(object.get_between<int64_t>("nothing", 1, 9, 4), 4);
  EXPECT_EQ(object.get_between<double>("x", 2.5, 2.5), 2.5);
}

TEST(Json, GetterErrorsNameFileAndKey) {
  const auto object = parse(
      R"({"n": "40", "f": 1.5, "big": 18446744073709551615, "a": {"b": {"c": -1}}, "l": [1, "x"], "o": [{"k": []}]})");
  EXPECT_THAT(error_of([&] { object.get<int64_t>("n"); }),
              AllOf(HasSubstr("c.json: key 'n'"), HasSubstr("\"40\""), HasSubstr("integer")));
  EXPECT_THAT(error_of([&] { object.get<int64_t>("f"); }), HasSubstr("1.5"));
  EXPECT_THAT(error_of([&] { object.get<int64_t>("big"); }), HasSubstr("64 bits"));
  EXPECT_THAT(error_of([&] { object.get<bool>("missing"); }), HasSubstr("'missing' is missing"));
  EXPECT_THAT(error_of([&] { object.object("a").object("b").get_between<int64_t>("c", 0, 9); }),
              AllOf(HasSubstr("'a.b.c'"), HasSubstr("is -1"), HasSubstr("from 0 to 9")));
  EXPECT_THAT(error_of([&] { object.get<std::vector<int64_t>>("l"); }), HasSubstr("list of integers"));
  EXPECT_THAT(error_of([&] { object.objects("o").at(0).get<int64_t>("k"); }), HasSubstr("'o[0].k'"));
  EXPECT_THAT(error_of([&] { object.object("l"); }), HasSubstr("object"));
  EXPECT_THAT(error_of([&] { object.objects("l"); }), HasSubstr("element 0"));
}

TEST(Json, BrokenTextIsRefused) {
  EXPECT_THAT(error_of([] { parse("{\n \"a\": 1,\n}"); }), AllOf(HasSubstr("c.json"), HasSubstr("line 3, column 1")));
  EXPECT_THAT(error_of([] { parse(""); }), AllOf(HasSubstr("not valid JSON"), HasSubstr("may be truncated")));
  EXPECT_THAT(error_of([] { parse("{\"a\": [1"); }), HasSubstr("may be truncated"));
  for (const char* wrong_at_its_end : {"{\"a\": 1,}", "{\"a\": 1]"})
    EXPECT_THAT(error_of([&] { parse(wrong_at_its_end); }), testing::Not(HasSubstr("truncated"))) << wrong_at_its_end;
  EXPECT_THAT(error_of([] { parse("[1]"); }), HasSubstr("JSON object"));
  EXPECT_THAT(error_of([] { parse("{\"a\": \"\xff\"}"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of([] { parse("{\"a\": 1e999}"); }), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of([] { parse(R"({"a": {"k": 1, "l": {"k": 2}, "k": 3}})"); }), HasSubstr("'k' appears twice"));
  EXPECT_EQ(parse(R"({"k": {"k": {"k": 1}}, "l": {"k": 2}})").object("l").get<int64_t>("k"), 2);
}

TEST(Json, BuildsTheDocumentOfThePlainParser) {
  const std::string text =
      R"({"a": [1, -2, 2.5, [], {}, [[null]]], "b": {"c": true, "d": {"e": "é\n"}, "f": false}, "a2": [{"x": []}, 3]})";
  EXPECT_EQ(parse_json(text, "c.json"), nlohmann::json::parse(text));
  const auto length = [](std::string_view number) { return static_cast<double>(number.size()); };
  EXPECT_EQ(parse_json("[0.1, 1e-10, 7]", "c.json", length).dump(), "[3.0,5.0,7]");
}

TEST(Json, DepthIsLimited) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_json(nested(kMaxJsonDepth), "d"));
  EXPECT_THAT(error_of([&] { parse_json(nested(kMaxJsonDepth + 1), "d"); }), HasSubstr("nests deeper"));
  EXPECT_THAT(error_of([&] { parse_json(std::string(5'000'000, '['), "d"); }), HasSubstr("nests deeper"));
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(error_of([&] { parse_json(objects, "d"); }), HasSubstr("nests deeper"));
}

TEST(Json, ShowsTheEndOfWhatItCouldNotRead) {
  const std::string error = error_of([] { parse_json("{\"a\": \"" + std::string(5000, 'x') + "\n\"}", "header"); });
  EXPECT_THAT(error, testing::AllOf(HasSubstr("header: not valid JSON"), HasSubstr("…"), HasSubstr("xxxx")));
  EXPECT_LT(error.size(), 300u) << error;
}

TEST(Json, FilesThatCannotBeRead) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { JsonObject::load(folder / "none.json"); }),
              AllOf(HasSubstr("none.json"), HasSubstr("no such")));
  EXPECT_THAT(error_of([&] { JsonObject::load(folder.path()); }), HasSubstr("regular file"));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { JsonObject::load(folder / "pipe"); }), HasSubstr("regular file"));
  EXPECT_THAT(error_of([&] { read_file(folder.write("long", "12345"), 4); }), HasSubstr("5 bytes"));
}

TEST(JsonText, TakesBytesThatAreNoUtf8) {
  EXPECT_EQ(json_text(nlohmann::json{{"b", 1}, {"a", "\xff.mp4"}}), "{\"a\":\"\xEF\xBF\xBD.mp4\",\"b\":1}");
  EXPECT_THAT(error_of([] { exact_json_text(nlohmann::json{{"a", "\xff.mp4"}}); }), HasSubstr("no UTF-8"));
  EXPECT_EQ(exact_json_text(nlohmann::json{{"a", 1}}), "{\"a\":1}");
  EXPECT_EQ(json_text(nlohmann::ordered_json{{"b", 1}, {"a", 2}}, 1), "{\n \"b\": 1,\n \"a\": 2\n}");
}

}  // namespace
}  // namespace zoetrope
