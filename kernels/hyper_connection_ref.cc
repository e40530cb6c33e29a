// SPDX-License-Identifier: Apache-2.0

#include "kernels/hyper_connection.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace torpor::kernels {
namespace {

using Square = std::array<double, kMaxStreams * kMaxStreams>;

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

void DivideBySums(int64_t n, double eps, bool rows, Square* c) {
  for (int64_t a = 0; a < n; ++a) {
    double sum = eps;
    for (int64_t b = 0; b < n; ++b) {
      sum += (*c)[static_cast<size_t>(rows ? a * n + b : b * n + a)];
    }
    for (int64_t b = 0; b < n; ++b) {
      (*c)[static_cast<size_t>(rows ? a * n + b : b * n + a)] /= sum;
    }
  }
}

void Softmax(int64_t n, double eps, Square* c) {
  for (int64_t j = 0; j < n; ++j) {
    double* row = c->data() + j * n;
    const double max = *std::max_element(row, row + n);
    double sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += row[k] = std::exp(row[k] - max);
    for (int64_t k = 0; k < n; ++k) row[k] = row[k] / sum + eps;
  }
}

}  // namespace

void HyperMixRef(const HyperMixParams& p) {
  const int64_t n = p.n_streams;
  const int64_t width = n * (2 + n);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* x = p.x + row * n * p.dim;
    double squares = 0;
    for (int64_t i = 0; i < n * p.dim; ++i) {
      squares += static_cast<double>(x[i]) * x[i];
    }
    const double norm =
        1.0 / std::sqrt(squares / static_cast<double>(n * p.dim) + p.norm_eps);
    const auto m = [&](int64_t i, int part) {
      return p.projection[row * width + i] * norm * p.scale[part] + p.base[i];
    };
    for (int64_t j = 0; j < n; ++j) {
      p.pre[row * n + j] = static_cast<float>(Sigmoid(m(j, 0)) + p.eps);
      p.post[row * n + j] = static_cast<float>(2.0 * Sigmoid(m(n + j, 1)));
    }
    Square c{};
    for (int64_t i = 0; i < n * n; ++i) {
      c[static_cast<size_t>(i)] = m(2 * n + i, 2);
    }
    Softmax(n, p.eps, &c);
    DivideBySums(n, p.eps, /*rows=*/false, &c);
    for (int64_t i = 1; i < p.n_iterations; ++i) {
      DivideBySums(n, p.eps, /*rows=*/true, &c);
      DivideBySums(n, p.eps, /*rows=*/false, &c);
    }
    for (int64_t i = 0; i < n * n; ++i) {
      p.comb[row * n * n + i] = static_cast<float>(c[static_cast<size_t>(i)]);
    }
  }
}

void HyperCollapseRef(const HyperCollapseParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    for (int64_t i = 0; i < p.dim; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < p.n_streams; ++j) {
        sum += static_cast<double>(p.mix[row * p.n_streams + j]) *
               p.x[(row * p.n_streams + j) * p.dim + i];
      }
      p.out[row * p.dim + i] = static_cast<float>(sum);
    }
  }
}

void HyperExpandRef(const HyperExpandParams& p) {
  const int64_t n = p.n_streams;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* comb = p.comb + row * n * n;
    for (int64_t i = 0; i < p.dim; ++i) {
      std::array<double, kMaxStreams> next{};
      for (int64_t k = 0; k < n; ++k) {
        double sum =
            static_cast<double>(p.post[row * n + k]) * p.y[row * p.dim + i];
        for (int64_t j = 0; j < n; ++j) {
          sum += static_cast<double>(comb[j * n + k]) *
                 p.x[(row * n + j) * p.dim + i];
        }
        next[static_cast<size_t>(k)] = sum;
      }
      for (int64_t k = 0; k < n; ++k) {
        p.x[(row * n + k) * p.dim + i] =
            static_cast<float>(next[static_cast<size_t>(k)]);
      }
    }
  }
}

}  // namespace torpor::kernels
