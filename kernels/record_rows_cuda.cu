// SPDX-License-Identifier: Apache-2.0
//
// Wide: ImportRecordsKernel loads stores
// Wide: ExportRecordsKernel loads stores

#include <cassert>

#include "kernels/cuda_simt.h"
#include "kernels/device_bytes.h"
#include "kernels/record_rows_cuda.h"

namespace torpor::kernels {
namespace {

using device::CopyByWarp;

constexpr int kThreads = 128;
constexpr int kRowsOfBlock = kThreads / 32;

TORPOR_DEVICE_ONLY int64_t RowOfWarp() {
  return int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / 32;
}

TORPOR_KERNEL(kThreads)
void ImportRecordsKernel(RecordRange to, const uint8_t* from) {
  const int64_t i = RowOfWarp();
  if (i >= to.n_rows) return;
  CopyByWarp(from + i * to.of.row_bytes, to.of.Row(to.row + i),
             to.of.row_bytes);
}

TORPOR_KERNEL(kThreads)
void ExportRecordsKernel(RecordRange from, uint8_t* to) {
  const int64_t i = RowOfWarp();
  if (i >= from.n_rows) return;
  CopyByWarp(from.of.Row(from.row + i), to + i * from.of.row_bytes,
             from.of.row_bytes);
}

unsigned BlocksOf(const RecordRange& range) {
  assert(range.of.page_rows >= 1);
  return static_cast<unsigned>((range.n_rows + kRowsOfBlock - 1) /
                               kRowsOfBlock);
}

}  // namespace

int ImportRecordsCuda(const RecordRange& to, const uint8_t* from,
                      CudaStream stream) {
  if (to.n_rows == 0) return 0;
  return TORPOR_LAUNCH(ImportRecordsKernel, BlocksOf(to), kThreads, 0, stream,
                       to, from);
}

int ExportRecordsCuda(const RecordRange& from, uint8_t* to, CudaStream stream) {
  if (from.n_rows == 0) return 0;
  return TORPOR_LAUNCH(ExportRecordsKernel, BlocksOf(from), kThreads, 0, stream,
                       from, to);
}

}  // namespace torpor::kernels
