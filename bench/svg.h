// SPDX-License-Identifier: Apache-2.0
//
// Plots of results as SVG: lines over linear or logarithmic axes, and grouped
// bars. Nothing here knows what is plotted. Values that an axis cannot show
// (not finite; 0 or less on a logarithmic one) are left out.

#ifndef TORPOR_BENCH_SVG_H_
#define TORPOR_BENCH_SVG_H_

#include <string>
#include <utility>
#include <vector>

namespace torpor::bench {

struct Series {
  std::string name;
  // x, y; in the order of x.
  std::vector<std::pair<double, double>> points;
};

struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;
  bool log_y = false;
  // The legend names them.
  std::vector<Series> series;
};

struct Bar {
  double value = 0;
  // Beside the bar.
  std::string text;
};

struct BarGroup {
  std::string label;
  // One for each series of the plot.
  std::vector<Bar> bars;
};

struct BarPlot {
  std::string title;
  // The legend; none is drawn for a single one.
  std::vector<std::string> series;
  std::vector<BarGroup> groups;
};

// Plots below each other.
class SvgPage {
 public:
  explicit SvgPage(const std::string& title);

  void Add(const LinePlot& plot);
  void Add(const BarPlot& plot);

  // The document, with a last line such as the machine's name.
  [[nodiscard]] std::string Render(const std::string& note) const;

 private:
  std::string title_;
  std::string body_;
  double height_;
};

// Values at which an axis from `low` to `high` is marked: 2 to 10 of them,
// round ones; powers of ten on a logarithmic axis, with 2 and 5 between where
// there would be few. REQUIRES: low < high, low > 0 on a logarithmic axis.
std::vector<double> AxisMarks(double low, double high, bool logarithmic);

// 1500 -> "1.5k", 0.002 -> "0.002", 3e6 -> "3M".
std::string ShortNumber(double value);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_SVG_H_
