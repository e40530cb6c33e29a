// SPDX-License-Identifier: Apache-2.0
//
// One thread a quad of neighbouring elements, striding by the grid.
//
// Wide: GatedKernel loads
// Wide: InPlaceKernel loads stores
// Wide: ToBf16Kernel loads

#include "kernels/activation_cuda.h"
#include "kernels/device_math.h"
#include "kernels/device_quads.h"

namespace torpor::kernels {
namespace {

using device::kQuadThreads;
using device::LoadQuad;
using device::Quad;
using device::StoreQuad;

// Which accesses of an op are aligned to their quads.
struct Aligned {
  bool in;
  bool out;
};

struct Gelu {
  TORPOR_DEVICE float operator()(float gate, float up, int64_t) const {
    return device::GeluTanh(gate) * up;
  }
};

struct Silu {
  float limit;
  const float* row_weight;

  TORPOR_DEVICE float operator()(float gate, float up, int64_t row) const {
    if (limit != 0.0f) {
      // A NaN passes every comparison.
      gate = gate > limit ? limit : gate;
      up = up > limit ? limit : up;
      up = up < -limit ? -limit : up;
    }
    const float y = gate * device::Sigmoid(gate) * up;
    return row_weight == nullptr ? y : y * row_weight[row];
  }
};

// `Params` are of GatedGelu or GatedSilu.
template <typename Params, typename Gate>
TORPOR_KERNEL(kQuadThreads)
void GatedKernel(Params p, Gate gate_of, Aligned aligned) {
  const int64_t quads = (p.dim + 3) / 4;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kQuadThreads;
  for (int64_t at =
           static_cast<int64_t>(blockIdx.x) * kQuadThreads + threadIdx.x;
       at < p.n_rows * quads; at += step) {
    const int64_t row = at / quads;
    const int64_t i = at % quads * 4;
    const float* gate = p.gate_up + row * 2 * p.dim + i;
    const Quad g = LoadQuad(gate, p.dim - i, aligned.in);
    const Quad u = LoadQuad(gate + p.dim, p.dim - i, aligned.in);
    Quad y;
    for (int j = 0; j < 4; ++j) y.v[j] = gate_of(g.v[j], u.v[j], row);
    StoreQuad(y, p.out, p.out_dtype, row * p.dim + i, p.dim - i, aligned.out);
  }
}

template <typename Params, typename Gate>
int LaunchGated(const Params& p, const Gate& gate_of, CudaStream stream) {
  const int64_t quads = p.n_rows * ((p.dim + 3) / 4);
  if (quads == 0) return 0;
  const Aligned aligned{device::QuadsAligned(p.gate_up, p.dim),
                        device::QuadsAligned(p.out, p.out_dtype, p.dim)};
  return TORPOR_LAUNCH((GatedKernel<Params, Gate>),
                       device::BlocksFor(quads, kQuadThreads), kQuadThreads, 0,
                       stream, p, gate_of, aligned);
}

struct CapTo {
  float cap;
  TORPOR_DEVICE float operator()(float v) const {
    return cap * device::Tanh(v / cap);
  }
};

struct ToNearestBf16 {
  TORPOR_DEVICE float operator()(float v) const { return ToFloat(ToBf16(v)); }
};

struct TimesFactor {
  float factor;
  TORPOR_DEVICE float operator()(float v) const { return v * factor; }
};

// x[i] = op(x[i]).
template <typename Op>
TORPOR_KERNEL(kQuadThreads)
void InPlaceKernel(float* x, int64_t n, Op op, bool aligned) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kQuadThreads;
  for (int64_t at =
           static_cast<int64_t>(blockIdx.x) * kQuadThreads + threadIdx.x;
       at * 4 < n; at += step) {
    Quad q = LoadQuad(x + at * 4, n - at * 4, aligned);
    for (float& v : q.v) v = op(v);
    StoreQuad(q, x + at * 4, n - at * 4, aligned);
  }
}

template <typename Op>
int LaunchInPlace(float* x, int64_t n, const Op& op, CudaStream stream) {
  if (n == 0) return 0;
  return TORPOR_LAUNCH(
      (InPlaceKernel<Op>), device::BlocksFor((n + 3) / 4, kQuadThreads),
      kQuadThreads, 0, stream, x, n, op, device::QuadsAligned(x, 4));
}

TORPOR_KERNEL(kQuadThreads)
void ToBf16Kernel(ToBf16Params p, Aligned aligned) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kQuadThreads;
  for (int64_t at =
           static_cast<int64_t>(blockIdx.x) * kQuadThreads + threadIdx.x;
       at * 4 < p.n; at += step) {
    const Quad x = LoadQuad(p.x + at * 4, p.n - at * 4, aligned.in);
    StoreQuad(x, p.out + at * 4, p.n - at * 4, aligned.out);
  }
}

}  // namespace

int GatedGeluCuda(const GatedGeluParams& params, CudaStream stream) {
  return LaunchGated(params, Gelu{}, stream);
}

int GatedSiluCuda(const GatedSiluParams& params, CudaStream stream) {
  return LaunchGated(params, Silu{params.limit, params.row_weight}, stream);
}

int SoftcapCuda(const SoftcapParams& params, CudaStream stream) {
  return LaunchInPlace(params.x, params.n, CapTo{params.cap}, stream);
}

int RoundBf16Cuda(const RoundBf16Params& params, CudaStream stream) {
  return LaunchInPlace(params.x, params.n, ToNearestBf16{}, stream);
}

int ScaleCuda(const ScaleParams& params, CudaStream stream) {
  return LaunchInPlace(params.x, params.n, TimesFactor{params.factor}, stream);
}

int ToBf16Cuda(const ToBf16Params& params, CudaStream stream) {
  if (params.n == 0) return 0;
  const Aligned aligned{device::QuadsAligned(params.x, 4),
                        device::QuadsAligned(params.out, 4)};
  return TORPOR_LAUNCH(ToBf16Kernel,
                       device::BlocksFor((params.n + 3) / 4, kQuadThreads),
                       kQuadThreads, 0, stream, params, aligned);
}

}  // namespace torpor::kernels
