// SPDX-License-Identifier: Apache-2.0
//
// Elementary functions over sixteen lanes, for the templates of
// kernels/*_cpu.h. NaN in gives NaN out.

#ifndef TORPOR_KERNELS_SIMD_MATH_H_
#define TORPOR_KERNELS_SIMD_MATH_H_

namespace torpor::kernels {

// e^x. Relative error below 2e-7 (range reduction by ln 2 in two parts, degree
// 6 polynomial with Cephes' coefficients); results below e^-87.3 are flushed up
// to it, above e^88.3 down to it.
template <class V>
typename V::F32 Exp(typename V::F32 x) {
  // Operand order keeps a NaN: Max and Min return their second operand.
  x = V::Max(V::Set(-87.3f), x);
  x = V::Min(V::Set(88.3f), x);
  const auto n = V::Round(V::Mul(x, V::Set(1.44269504088896341f)));
  auto r = V::Fma(n, V::Set(-0.693359375f), x);
  r = V::Fma(n, V::Set(2.12194440e-4f), r);
  auto p = V::Set(1.9875691500e-4f);
  p = V::Fma(p, r, V::Set(1.3981999507e-3f));
  p = V::Fma(p, r, V::Set(8.3334519073e-3f));
  p = V::Fma(p, r, V::Set(4.1665795894e-2f));
  p = V::Fma(p, r, V::Set(1.6666665459e-1f));
  p = V::Fma(p, r, V::Set(5.0000001201e-1f));
  p = V::Add(V::Fma(p, V::Mul(r, r), r), V::Set(1.0f));
  return V::Mul(p, V::Exp2Int(n));
}

// 1 / (1 + e^-x), less 5e-39 so that it is 0 below -88.3.
template <class V>
typename V::F32 Sigmoid(typename V::F32 x) {
  const auto one = V::Set(1.0f);
  const auto least = V::Div(one, V::Add(one, Exp<V>(V::Set(__builtin_inff()))));
  const auto e = Exp<V>(V::Sub(V::Zero(), x));
  return V::Sub(V::Div(one, V::Add(one, e)), least);
}

// tanh(x) = 1 - 2 / (1 + e^2x).
template <class V>
typename V::F32 Tanh(typename V::F32 x) {
  const auto e = Exp<V>(V::Add(x, x));
  return V::Sub(V::Set(1.0f), V::Div(V::Set(2.0f), V::Add(V::Set(1.0f), e)));
}

// The tanh form of GELU, 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))),
// written as x / (1 + e^-2u).
template <class V>
typename V::F32 GeluTanh(typename V::F32 x) {
  constexpr float kSqrt2OverPi = 0.7978845608028654f;
  const auto x2 = V::Mul(x, x);
  const auto inner = V::Fma(V::Set(0.044715f), x2, V::Set(1.0f));
  const auto u = V::Mul(V::Mul(V::Set(kSqrt2OverPi), x), inner);
  const auto e = Exp<V>(V::Mul(V::Set(-2.0f), u));
  return V::Div(x, V::Add(V::Set(1.0f), e));
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_SIMD_MATH_H_
