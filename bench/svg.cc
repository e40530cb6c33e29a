// SPDX-License-Identifier: Apache-2.0

#include "bench/svg.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_format.h"

namespace torpor::bench {
namespace {

constexpr double kWidth = 760;
// Of the title line, and of the last line.
constexpr double kHeadHeight = 44;
constexpr double kNoteHeight = 32;

constexpr std::array<const char*, 8> kColors = {"#3b7dd8", "#d9702b", "#2f9e62",
                                                "#a34fb8", "#c2a118", "#555555",
                                                "#c43c4c", "#2aa3a8"};
const char* ColorOf(size_t series) { return kColors[series % kColors.size()]; }

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, const std::string& text,
                 const std::string& attributes = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\"%s>%s</text>\n", x, y,
                         attributes.empty() ? "" : " " + attributes,
                         Escaped(text));
}

std::string Line(double x1, double y1, double x2, double y2,
                 const char* color) {
  return absl::StrFormat(
      "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
      "stroke=\"%s\"/>\n",
      x1, y1, x2, y2, color);
}

// Coloured squares with names, in one row.
std::string Legend(const std::vector<std::string>& names, double x, double y) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    out += absl::StrFormat(
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\" "
        "fill=\"%s\"/>\n",
        x, y - 9, ColorOf(i));
    out += Text(x + 14, y, names[i]);
    x += 34 + 7.2 * static_cast<double>(names[i].size());
  }
  return out;
}

// One axis: what it can show, and where that lies.
class Axis {
 public:
  Axis(bool logarithmic, double from, double to)
      : logarithmic_(logarithmic), from_(from), to_(to) {}

  [[nodiscard]] bool Shows(double value) const {
    return std::isfinite(value) && (!logarithmic_ || value > 0);
  }
  void Include(double value) {
    if (!Shows(value)) return;
    low_ = any_ ? std::min(low_, value) : value;
    high_ = any_ ? std::max(high_, value) : value;
    any_ = true;
  }
  // A range of some width around what was included.
  void Close() {
    if (!any_) low_ = high_ = 1;
    if (low_ < high_) return;
    if (logarithmic_) {
      low_ /= 2;
      high_ *= 2;
    } else {
      const double half = low_ == 0 ? 1 : std::abs(low_) / 2;
      low_ -= half;
      high_ += half;
    }
  }
  [[nodiscard]] double At(double value) const {
    const auto scaled = [&](double v) {
      return logarithmic_ ? std::log10(v) : v;
    };
    return from_ + (scaled(value) - scaled(low_)) /
                       (scaled(high_) - scaled(low_)) * (to_ - from_);
  }
  [[nodiscard]] std::vector<double> Marks() const {
    return AxisMarks(low_, high_, logarithmic_);
  }

 private:
  const bool logarithmic_;
  const double from_;
  const double to_;
  bool any_ = false;
  double low_ = 0;
  double high_ = 0;
};

// Runs of points that both axes show, as polylines with dots.
std::string Curve(const Series& series, const Axis& x, const Axis& y,
                  const char* color) {
  std::string dots;
  std::string out;
  std::string points;
  const auto end_run = [&] {
    if (points.empty()) return;
    out += absl::StrFormat(
        "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" "
        "stroke-width=\"2\"/>\n",
        points, color);
    points.clear();
  };
  for (const auto& [px, py] : series.points) {
    if (!x.Shows(px) || !y.Shows(py)) {
      end_run();
      continue;
    }
    if (!points.empty()) points += ' ';
    points += absl::StrFormat("%.1f,%.1f", x.At(px), y.At(py));
    dots += absl::StrFormat(
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x.At(px),
        y.At(py), color);
  }
  end_run();
  return out + dots;
}

}  // namespace

std::string ShortNumber(double value) {
  const double size = std::abs(value);
  if (size >= 1e9) return absl::StrFormat("%gG", value / 1e9);
  if (size >= 1e6) return absl::StrFormat("%gM", value / 1e6);
  if (size >= 1e3) return absl::StrFormat("%gk", value / 1e3);
  return absl::StrFormat("%g", value);
}

std::vector<double> AxisMarks(double low, double high, bool logarithmic) {
  std::vector<double> marks;
  if (!logarithmic) {
    // The largest of 1, 2, 5 x 10^n that gives at least four steps.
    const double power = std::pow(10, std::floor(std::log10(high - low)));
    double step = power / 10;
    for (const double factor : {5.0, 2.0, 1.0, 0.5, 0.2}) {
      if ((high - low) / (power * factor) < 4) continue;
      step = power * factor;
      break;
    }
    for (double n = std::ceil(low / step); n * step <= high * (1 + 1e-9); ++n) {
      marks.push_back(n * step);
    }
    return marks;
  }
  const double decades = std::log10(high / low);
  const std::vector<double> factors =
      decades < 3 ? std::vector<double>{1, 2, 5} : std::vector<double>{1};
  for (double power = std::floor(std::log10(low)); power <= std::log10(high);
       ++power) {
    for (const double factor : factors) {
      const double mark = factor * std::pow(10, power);
      if (mark >= low * (1 - 1e-9) && mark <= high * (1 + 1e-9)) {
        marks.push_back(mark);
      }
    }
  }
  // Less than a step between: the ends themselves.
  if (marks.size() < 2) marks = {low, high};
  return marks;
}

SvgPage::SvgPage(const std::string& title)
    : title_(title), height_(kHeadHeight) {}

void SvgPage::Add(const LinePlot& plot) {
  constexpr double kLeft = 76;
  constexpr double kRight = kWidth - 24;
  constexpr double kPlotHeight = 220;
  const double top = height_ + 52;
  const double bottom = top + kPlotHeight;
  Axis x(plot.log_x, kLeft, kRight);
  Axis y(plot.log_y, bottom, top);
  std::vector<std::string> names;
  for (const Series& series : plot.series) {
    names.push_back(series.name);
    for (const auto& [px, py] : series.points) {
      if (!x.Shows(px) || !y.Shows(py)) continue;
      x.Include(px);
      y.Include(py);
    }
  }
  // Sizes are read from 0 where they can be.
  if (!plot.log_y) y.Include(0);
  x.Close();
  y.Close();
  body_ += Text(20, height_ + 16, plot.title, "font-weight=\"bold\"");
  body_ += Legend(names, kLeft, height_ + 38);
  for (const double mark : x.Marks()) {
    body_ += Line(x.At(mark), top, x.At(mark), bottom, "#e4e4e4");
    body_ += Text(x.At(mark), bottom + 16, ShortNumber(mark),
                  "text-anchor=\"middle\"");
  }
  for (const double mark : y.Marks()) {
    body_ += Line(kLeft, y.At(mark), kRight, y.At(mark), "#e4e4e4");
    body_ += Text(kLeft - 6, y.At(mark) + 4, ShortNumber(mark),
                  "text-anchor=\"end\"");
  }
  body_ += Line(kLeft, bottom, kRight, bottom, "#333");
  body_ += Line(kLeft, top, kLeft, bottom, "#333");
  body_ += Text((kLeft + kRight) / 2, bottom + 34, plot.x_label,
                "text-anchor=\"middle\" fill=\"#666\"");
  const double middle = (top + bottom) / 2;
  body_ += Text(18, middle, plot.y_label,
                absl::StrFormat("text-anchor=\"middle\" fill=\"#666\" "
                                "transform=\"rotate(-90 18 %.1f)\"",
                                middle));
  for (size_t i = 0; i < plot.series.size(); ++i) {
    body_ += Curve(plot.series[i], x, y, ColorOf(i));
  }
  height_ = bottom + 52;
}

void SvgPage::Add(const BarPlot& plot) {
  constexpr double kLeft = 250;
  constexpr double kLongest = 350;
  constexpr double kBar = 18;
  constexpr double kStep = 20;
  constexpr double kGap = 8;
  double max = 0;
  for (const BarGroup& group : plot.groups) {
    for (const Bar& bar : group.bars) {
      if (std::isfinite(bar.value)) max = std::max(max, bar.value);
    }
  }
  body_ += Text(20, height_ + 16, plot.title, "font-weight=\"bold\"");
  double y = height_ + 28;
  if (plot.series.size() > 1) {
    body_ += Legend(plot.series, kLeft, y + 10);
    y += 22;
  }
  for (const BarGroup& group : plot.groups) {
    const double group_height = kStep * static_cast<double>(group.bars.size());
    body_ += Text(kLeft - 8, y + group_height / 2 + 4, group.label,
                  "text-anchor=\"end\"");
    for (size_t i = 0; i < group.bars.size(); ++i) {
      const Bar& bar = group.bars[i];
      const bool drawn = max > 0 && std::isfinite(bar.value) && bar.value > 0;
      const double width =
          drawn ? std::max(1.0, bar.value / max * kLongest) : 0;
      body_ += absl::StrFormat(
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\" "
          "fill=\"%s\"/>\n",
          kLeft, y, width, kBar, ColorOf(i));
      body_ += Text(kLeft + width + 8, y + 14, bar.text);
      y += kStep;
    }
    y += kGap;
  }
  height_ = y + 16;
}

std::string SvgPage::Render(const std::string& note) const {
  const double height = height_ + kNoteHeight;
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
      "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n",
      kWidth, height, kWidth, height);
  out += Text(20, 28, title_, "font-size=\"15\"");
  out += body_;
  out += Text(20, height - 14, note, "fill=\"#666\"");
  return out + "</svg>\n";
}

}  // namespace torpor::bench
