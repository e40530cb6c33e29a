// SPDX-License-Identifier: Apache-2.0
//
// Elementary functions of kernels/*_cuda.cu, as kernels/simd_math.h has them:
// written out in fused multiply-adds, so that a host and every device compute
// the same bits. NaN in gives NaN out.

#ifndef TORPOR_KERNELS_DEVICE_MATH_H_
#define TORPOR_KERNELS_DEVICE_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/device_function.h"

namespace torpor::kernels::device {

// e^x. Relative error below 2e-7 (range reduction by ln 2 in two parts, degree
// 6 polynomial with Cephes' coefficients); results below e^-87.3 are flushed up
// to it, above e^88.3 down to it.
TORPOR_DEVICE inline float Exp(float x) {
  // A NaN passes both comparisons.
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  const float n = rintf(x * 1.44269504088896341f);
  float r = fmaf(n, -0.693359375f, x);
  r = fmaf(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  const int exponent = x == x ? static_cast<int>(n) : 0;
  return p * std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// 1 / (1 + e^-x), less 5e-39 so that it is 0 below -88.3.
TORPOR_DEVICE inline float Sigmoid(float x) {
  const float least = 1.0f / (1.0f + Exp(88.3f));
  return 1.0f / (1.0f + Exp(-x)) - least;
}

// tanh(x) = 1 - 2 / (1 + e^2x).
TORPOR_DEVICE inline float Tanh(float x) {
  return 1.0f - 2.0f / (1.0f + Exp(x + x));
}

// The tanh form of GELU, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))),
// written as x / (1 + e^-2u).
TORPOR_DEVICE inline float GeluTanh(float x) {
  const float inner = fmaf(0.044715f, x * x, 1.0f);
  const float u = 0.7978845608028654f * x * inner;
  return x / (1.0f + Exp(-2.0f * u));
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_MATH_H_
