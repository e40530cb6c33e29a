// SPDX-License-Identifier: Apache-2.0
//
// kernels/record_rows.h on a GPU: rows of records into and out of the pages
// that hold them. A warp has a row, 16 bytes at a time where row_bytes, pages
// and data allow it. All pointers are the device's, the list of pages too.
// Floor: every row read once and written once.

#ifndef TORPOR_KERNELS_RECORD_ROWS_CUDA_H_
#define TORPOR_KERNELS_RECORD_ROWS_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/record_rows.h"

namespace torpor::kernels {

// Launched on `stream`; 0, or CUDA's error number. `from` and `to` are
// [n_rows, row_bytes].
int ImportRecordsCuda(const RecordRange& to, const uint8_t* from,
                      CudaStream stream);
int ExportRecordsCuda(const RecordRange& from, uint8_t* to, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_RECORD_ROWS_CUDA_H_
