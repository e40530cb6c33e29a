// SPDX-License-Identifier: Apache-2.0

#include "replay/config_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseJsonObjectTest, ReadsAnObject) {
  ASSERT_OK_AND_ASSIGN(
      const json parsed,
      ParseJsonObject(" {\"a\": [1, {\"a\": null}], \"b\": \"\\u00e9\"}\n",
                      "x.json"));
  EXPECT_EQ(parsed["a"][0], 1);
  EXPECT_TRUE(parsed["a"][1]["a"].is_null());
  EXPECT_EQ(parsed["b"], "\u00e9");
}

TEST(ParseJsonObjectTest, WhatIsNoObjectIsRefusedByName) {
  using namespace std::string_literals;
  for (const std::string& text : {""s,
                                  "{"s,
                                  "{\"a\":1"s,
                                  "{\"a\":1,}"s,
                                  "{} {}"s,
                                  "{'a':1}"s,
                                  "{\"a\":01}"s,
                                  "{\"a\":NaN}"s,
                                  "{\"a\":Infinity}"s,
                                  "{\"a\":1e999}"s,
                                  "{\"a\":\"\xff\"}"s,
                                  "{\"a\":\"\n\"}"s,
                                  "{} // x"s,
                                  "[]"s,
                                  "null"s,
                                  "1"s,
                                  "\"{}\""s,
                                  "{}\0"s,
                                  "{}\0{}"s,
                                  "{\"a\":\"\0\"}"s}) {
    EXPECT_THAT(ParseJsonObject(text, "the file"),
                HasStatus(kInvalid, "the file"))
        << text;
  }
}

TEST(ParseJsonObjectTest, AKeyThatComesTwiceIsNamed) {
  for (const char* text :
       {R"({"twin":1,"twin":1})", R"({"twin":1,"b":2,"twin":3})",
        R"({"twin":1,"tw\u0069n":2})", R"({"a":{"twin":1,"twin":2}})",
        R"({"a":[{"b":1},{"twin":1,"c":{"twin":1},"twin":2}]})",
        R"({"twin":{"a":{"b":1}},"twin":1})"}) {
    const auto parsed = ParseJsonObject(text, "the file");
    EXPECT_THAT(parsed, HasStatus(kInvalid, "'twin'")) << text;
    EXPECT_THAT(parsed, HasStatus(kInvalid, "the file")) << text;
  }
  for (const char* text :
       {R"({"a":{"a":{"a":1}}})", R"({"a":[{"b":1},{"b":2}]})",
        R"({"x":{"b":1},"y":{"b":2},"b":3})", R"({"a":1,"A":2})"}) {
    EXPECT_OK(ParseJsonObject(text, "the file")) << text;
  }
}

TEST(ParseJsonObjectTest, OrdinaryNestingIsReadAndDeepNestingRefused) {
  const auto arrays = [](size_t n) {
    return "{\"a\":" + std::string(n, '[') + std::string(n, ']') + "}";
  };
  const auto objects = [](size_t n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += "{\"a\":";
    return text + "1" + std::string(n, '}');
  };
  for (const size_t depth : {1, 10, 30}) {
    ASSERT_OK_AND_ASSIGN(const json parsed,
                         ParseJsonObject(objects(depth), "x"));
    EXPECT_EQ(parsed.dump(), objects(depth));
    EXPECT_OK(ParseJsonObject(arrays(depth), "x"));
  }
  for (const size_t depth : {size_t{1000}, size_t{1} << 20}) {
    EXPECT_THAT(ParseJsonObject(arrays(depth), "x"), HasStatus(kInvalid, "x:"));
    EXPECT_THAT(ParseJsonObject(objects(depth), "x"),
                HasStatus(kInvalid, "x:"));
    EXPECT_THAT(ParseJsonObject("{\"a\":" + std::string(depth, '['), "x"),
                HasStatus(kInvalid, "x:"));
  }
}

TEST(ConfigReaderTest, AbsentAndNullAreTheDefault) {
  const json object = {{"nothing", nullptr}};
  ConfigReader reader(object);
  for (const char* key : {"nothing", "absent"}) {
    EXPECT_FALSE(reader.Has(key));
    EXPECT_EQ(reader.Int(key, 7, 0, 10), 7);
    EXPECT_EQ(reader.Number(key, 2.5), 2.5);
    EXPECT_TRUE(reader.Bool(key, true));
    EXPECT_EQ(reader.String(key, "else"), "else");
  }
  EXPECT_OK(reader.status());
}

TEST(ConfigReaderTest, ReadsValues) {
  const json object = json::parse(
      R"({"i":-3,"n":1e-6,"whole":8,"yes":true,"no":false,"s":""})");
  ConfigReader reader(object);
  EXPECT_EQ(reader.Int("i", 0, -3, -3), -3);
  EXPECT_EQ(reader.Number("n", 0), 1e-6);
  EXPECT_EQ(reader.Number("whole", 0), 8);
  EXPECT_TRUE(reader.Bool("yes", false));
  EXPECT_FALSE(reader.Bool("no", true));
  EXPECT_EQ(reader.String("s", "else"), "");
  EXPECT_TRUE(reader.Has("s"));
  EXPECT_OK(reader.status());
}

TEST(ConfigReaderTest, IntegersOutsideTheirRangeAreRefused) {
  for (const char* text :
       {"-6", "6", "-9223372036854775808", "9223372036854775807",
        "9223372036854775808", "18446744073709551615", "18446744073709551611",
        "18446744073709551616", "1e3", "1.0", "\"1\"", "true", "[1]", "{}"}) {
    const json object = json::parse(std::string(R"({"the key":)") + text + "}");
    ConfigReader reader(object);
    EXPECT_EQ(reader.Int("the key", 4, -5, 5), 4) << text;
    EXPECT_THAT(reader.status(), HasStatus(kInvalid, "'the key'")) << text;
    // What was wanted.
    EXPECT_THAT(std::string(reader.status().message()),
                AllOf(HasSubstr("-5"), HasSubstr("5")))
        << text;
  }
  const json object = json::parse(
      R"({"least":-9223372036854775808,"most":9223372036854775807})");
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  ConfigReader reader(object);
  EXPECT_EQ(reader.Int("least", 0, kLeast, kMost), kLeast);
  EXPECT_EQ(reader.Int("most", 0, kLeast, kMost), kMost);
  EXPECT_OK(reader.status());
}

TEST(ConfigReaderTest, OtherTypesAreRefusedByKeyAndValue) {
  const json object = json::parse(
      R"({"n":"1.5","b":1,"b2":"true","s":5,"s2":["x"],"n2":false})");
  const auto refused = [&](auto read, const char* key, const char* got) {
    ConfigReader reader(object);
    read(&reader);
    EXPECT_THAT(reader.status(),
                HasStatus(kInvalid, "'" + std::string(key) + "'"));
    EXPECT_THAT(reader.status(), HasStatus(kInvalid, std::string(got)));
  };
  refused([](auto* r) { EXPECT_EQ(r->Number("n", 2), 2); }, "n", "1.5");
  refused([](auto* r) { EXPECT_EQ(r->Number("n2", 2), 2); }, "n2", "false");
  refused([](auto* r) { EXPECT_FALSE(r->Bool("b", false)); }, "b", "1");
  refused([](auto* r) { EXPECT_TRUE(r->Bool("b2", true)); }, "b2", "true");
  refused([](auto* r) { EXPECT_EQ(r->String("s", "x"), "x"); }, "s", "5");
  refused([](auto* r) { EXPECT_EQ(r->String("s2", "y"), "y"); }, "s2", "x");
}

TEST(ConfigReaderTest, TheFirstErrorSticks) {
  const json object = {{"first", "x"}, {"second", "y"}};
  ConfigReader reader(object);
  reader.Int("first", 0, 0, 1);
  reader.Bool("second", false);
  reader.Fail(absl::InternalError("third"));
  EXPECT_THAT(reader.status(), HasStatus(kInvalid, "'first'"));
  ConfigReader other(object);
  other.Fail(absl::UnimplementedError("mine"));
  other.Int("first", 0, 0, 1);
  EXPECT_THAT(other.status(),
              HasStatus(absl::StatusCode::kUnimplemented, "mine"));
}

}  // namespace
}  // namespace torpor::replay
