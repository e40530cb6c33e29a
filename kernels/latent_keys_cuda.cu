// SPDX-License-Identifier: Apache-2.0
//
// A warp names the keys of one row.

#include <cassert>

#include "kernels/cuda_simt.h"
#include "kernels/latent_keys_cuda.h"

namespace torpor::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kRowsOfBlock = kThreads / 32;

TORPOR_DEVICE_ONLY const uint8_t* RecordAt(const uint8_t* const* pages,
                                           int64_t page_rows, int64_t bytes,
                                           int64_t row) {
  return pages[row / page_rows] + row % page_rows * bytes;
}

TORPOR_KERNEL(kThreads)
void NameLatentKeysKernel(NameLatentKeysParams p) {
  const int64_t row = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / 32;
  if (row >= p.n_rows) return;
  const auto lane = static_cast<int64_t>(threadIdx.x % 32);
  const LatentPages& sequence = p.sequences[p.sequence_of[row]];
  const KeyRange window = p.windows[row];
  const int64_t n_window = window.end - window.begin;
  const int64_t n_entries = p.picks == nullptr ? 0 : p.n_picks[row];
  const uint8_t** list = p.lists + row * p.n_keys_max;
  if (lane == 0) {
    p.keys[row] = {list, n_window, list + n_window, n_entries};
  }
  if (n_window + n_entries > p.n_keys_max) return;
  for (int64_t i = lane; i < n_window; i += 32) {
    const int64_t position = window.begin + i;
    list[i] = RecordAt(
        sequence.window, p.page_rows, p.window_bytes,
        sequence.ring_rows == 0 ? position : position % sequence.ring_rows);
  }
  for (int64_t i = lane; i < n_entries; i += 32) {
    list[n_window + i] = RecordAt(sequence.entries, p.page_rows, p.entry_bytes,
                                  p.picks[row * p.picks_stride + i]);
  }
}

}  // namespace

int NameLatentKeysCuda(const NameLatentKeysParams& p, CudaStream stream) {
  assert(p.page_rows >= 1);
  if (p.n_rows == 0) return 0;
  const auto blocks =
      static_cast<unsigned>((p.n_rows + kRowsOfBlock - 1) / kRowsOfBlock);
  return TORPOR_LAUNCH(NameLatentKeysKernel, blocks, kThreads, 0, stream, p);
}

}  // namespace torpor::kernels
