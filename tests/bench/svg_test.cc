// SPDX-License-Identifier: Apache-2.0

#include "bench/svg.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace torpor::bench {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

size_t Occurrences(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + 1)) {
    ++n;
  }
  return n;
}

// Every element that is opened is closed, and no text opens one.
void ExpectWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos;
       at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos) << svg.substr(at);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    EXPECT_EQ(Occurrences(tag, "\"") % 2, 0U) << tag;
  }
  EXPECT_TRUE(open.empty());
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgTest, MarksOfAnAxisAreRound) {
  EXPECT_THAT(AxisMarks(0, 10, false), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(AxisMarks(0, 45, false), ElementsAre(0, 10, 20, 30, 40));
  EXPECT_THAT(AxisMarks(100, 100'000, true),
              ElementsAre(100, 1'000, 10'000, 100'000));
  EXPECT_THAT(AxisMarks(3, 30, true), ElementsAre(5, 10, 20));
  EXPECT_THAT(AxisMarks(6, 9, true), ElementsAre(6, 9));
}

TEST(SvgTest, MarksLieWithinAnyAxis) {
  for (double low = 0.001; low < 1e6; low *= 3.7) {
    for (double high = low * 1.01; high < 1e9; high *= 4.3) {
      for (const bool logarithmic : {false, true}) {
        const std::vector<double> marks = AxisMarks(low, high, logarithmic);
        EXPECT_GE(marks.size(), 2U) << low << " " << high;
        EXPECT_LE(marks.size(), 13U) << low << " " << high;
        EXPECT_THAT(marks,
                    Each(::testing::AllOf(::testing::Ge(low * (1 - 1e-8)),
                                          ::testing::Le(high * (1 + 1e-8)))));
      }
    }
  }
}

TEST(SvgTest, NumbersAreShort) {
  EXPECT_EQ(ShortNumber(0), "0");
  EXPECT_EQ(ShortNumber(0.002), "0.002");
  EXPECT_EQ(ShortNumber(1'500), "1.5k");
  EXPECT_EQ(ShortNumber(3e6), "3M");
  EXPECT_EQ(ShortNumber(2e9), "2G");
}

TEST(SvgTest, LinesLieWhereTheLogarithmPutsThem) {
  SvgPage page("Scale");
  page.Add(LinePlot{"Latency",
                    "sessions",
                    "ms",
                    true,
                    true,
                    {{"p50", {{100, 1}, {1'000, 1}, {10'000, 1}}},
                     {"p99", {{100, 10}, {1'000, 10}, {10'000, 10}}}}});
  const std::string svg = page.Render("a machine");
  ExpectWellFormed(svg);
  EXPECT_EQ(Occurrences(svg, "<polyline"), 2U);
  EXPECT_EQ(Occurrences(svg, "<circle"), 6U);
  // The middle of two decades is the middle of the plot: 76 to 736.
  EXPECT_THAT(svg, HasSubstr("points=\"76.0,316.0 406.0,316.0 736.0,316.0\""));
  EXPECT_THAT(svg, HasSubstr("points=\"76.0,96.0 406.0,96.0 736.0,96.0\""));
  EXPECT_THAT(svg, HasSubstr(">p99<"));
  EXPECT_THAT(svg, HasSubstr(">a machine<"));
}

TEST(SvgTest, LeavesOutWhatAnAxisCannotShow) {
  SvgPage page("t");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  page.Add(LinePlot{
      "t", "x", "y", true, true, {{"s", {{1, 1}, {2, nan}, {0, 3}, {4, 4}}}}});
  page.Add(LinePlot{"empty", "x", "y", false, false, {}});
  page.Add(LinePlot{"one", "x", "y", false, false, {{"s", {{5, 0}}}}});
  page.Add(BarPlot{"bars", {}, {{"none", {{nan, "-"}}}, {"0", {{0, "0"}}}}});
  const std::string svg = page.Render("");
  ExpectWellFormed(svg);
  // The gap parts the line.
  EXPECT_EQ(Occurrences(svg, "<circle"), 3U);
  EXPECT_EQ(Occurrences(svg, "<polyline"), 3U);
}

TEST(SvgTest, BarsAreInProportionAndTextIsEscaped) {
  SvgPage page("a < b & \"c\"");
  page.Add(BarPlot{
      "t",
      {"ratio", "must be"},
      {{"first", {{1, "1"}, {2, ">= 2"}}}, {"second", {{4, "4"}, {2, "2"}}}}});
  const std::string svg = page.Render("");
  ExpectWellFormed(svg);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("&gt;= 2"));
  // The longest of 350, the others half and a quarter of it.
  EXPECT_EQ(Occurrences(svg, "width=\"350.0\""), 1U);
  EXPECT_EQ(Occurrences(svg, "width=\"175.0\""), 2U);
  EXPECT_EQ(Occurrences(svg, "width=\"87.5\""), 1U);
  EXPECT_THAT(svg, HasSubstr(">must be<"));
}

}  // namespace
}  // namespace torpor::bench
