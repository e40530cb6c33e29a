// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_simt.h"
#include "kernels/latent_keys_cuda.h"

namespace torpor::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsOfBlock = kThreads / 32;

TORPOR_KERNEL(kThreads)
void NameLatentKeysKernel(NameLatentKeysParams p) {
  const LatentSegment& segment = p.segments[blockIdx.y];
  const int64_t i = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / 32;
  if (i >= segment.n_rows) return;
  const auto lane = static_cast<int64_t>(threadIdx.x % 32);
  const int64_t row = segment.row_begin + i;
  const KeyRange window = segment.window_keys[i];
  const int64_t n_window = window.end - window.begin;
  const int64_t n_entries = segment.picks == nullptr ? 0 : segment.n_picks[i];
  const uint8_t** list = p.lists + row * p.n_keys_max;
  if (lane == 0) {
    p.keys[row] = {list, n_window, list + n_window, n_entries};
  }
  if (n_window + n_entries > p.n_keys_max) return;
  for (int64_t k = lane; k < n_window; k += 32) {
    list[k] = segment.window.Row(window.begin + k);
  }
  const int32_t* picks = segment.picks + i * segment.picks_stride;
  for (int64_t k = lane; k < n_entries; k += 32) {
    list[n_window + k] = segment.entries.Row(picks[k]);
  }
}

}  // namespace

int NameLatentKeysCuda(const NameLatentKeysParams& p, CudaStream stream) {
  if (p.n_segments == 0 || p.n_rows_max == 0) return 0;
  const dim3 grid(
      static_cast<unsigned>((p.n_rows_max + kRowsOfBlock - 1) / kRowsOfBlock),
      static_cast<unsigned>(p.n_segments));
  return TORPOR_LAUNCH(NameLatentKeysKernel, grid, kThreads, 0, stream, p);
}

}  // namespace torpor::kernels
