// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu_ops.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "kernels/cpu_ops_impl.h"

namespace torpor::kernels {
namespace {

// Below this much work a loop stays on its caller's thread: waking another
// costs more.
constexpr int64_t kElementsPerTask = 16 * 1024;

}  // namespace

const CpuKernels& KernelsOf(Isa isa) {
#if defined(TORPOR_X86_PATHS)
  if (isa == Isa::kAvx2) return Avx2Kernels();
  if (isa == Isa::kAvx512Bf16) return Avx512Bf16Kernels();
  if (isa == Isa::kAmx) return AmxKernels();
#endif
  assert(isa == Isa::kPortable);
  return PortableKernels();
}

void CpuOps::Impl::Ranges(int64_t n, int64_t item_elements,
                          const std::function<void(int64_t, int64_t)>& fn) {
  const int64_t enough = std::max<int64_t>(
      1, kElementsPerTask / std::max<int64_t>(1, item_elements));
  const int64_t tasks =
      std::clamp<int64_t>(n / enough, 1, 4 * pool.n_threads());
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    fn(n * task / tasks, n * (task + 1) / tasks);
  });
}

CpuOps::CpuOps(Isa isa, int n_threads)
    : isa_(isa),
      name_("cpu/" + std::string(IsaName(isa))),
      impl_(std::make_unique<Impl>(isa, n_threads)) {}
CpuOps::~CpuOps() = default;

int CpuOps::n_threads() const { return impl_->pool.n_threads(); }

// ---- memory ----------------------------------------------------------------

void* CpuOps::Allocate(size_t bytes) { return operator new(bytes, kAlign); }

void CpuOps::Free(void* p) { operator delete(p, kAlign); }

void CpuOps::Upload(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void CpuOps::Download(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::shared_ptr<const uint8_t> CpuOps::Place(std::span<const uint8_t> bytes) {
  return {std::shared_ptr<const uint8_t>(), bytes.data()};
}

size_t CpuOps::PageBytes(const KvShape& shape) const {
  return shape.page_bytes();
}

uint8_t* CpuOps::NewPage(const KvShape& shape) {
  return NewPage(shape.page_bytes());
}

uint8_t* CpuOps::NewPage(size_t bytes) {
  auto* page = static_cast<uint8_t*>(Allocate(bytes));
  std::memset(page, 0, bytes);
  return page;
}

void CpuOps::PutKv(const PutKvParams& params) { PutKvRef(params); }

absl::Status CpuOps::ImportKv(const KvRowBytes& to,
                              std::span<const uint8_t> from) {
  ImportKvRef(to, from.data());
  return absl::OkStatus();
}

absl::Status CpuOps::ExportKv(const KvRowBytes& from, std::span<uint8_t> to) {
  ExportKvRef(from, to.data());
  return absl::OkStatus();
}

absl::Status CpuOps::ImportRecords(const RecordRange& to,
                                   std::span<const uint8_t> from) {
  ImportRecordsRef(to, from.data());
  return absl::OkStatus();
}

absl::Status CpuOps::ExportRecords(const RecordRange& from,
                                   std::span<uint8_t> to) {
  ExportRecordsRef(from, to.data());
  return absl::OkStatus();
}

// ---- ops -------------------------------------------------------------------

void CpuOps::EmbedRows(const EmbedRowsParams& params) { EmbedRowsRef(params); }

void CpuOps::CopyRows(const CopyRowsParams& params) { CopyRowsRef(params); }

void CpuOps::Gemm(const GemmParams& params) {
  if (params.n_rows == 0) return;
  const int64_t unit = impl_->kernels.gemm_groups;
  const int64_t units = (params.b->n_groups() + unit - 1) / unit;
  impl_->Ranges(units, unit * kGemmGroup * params.b->k() * params.n_rows / 16,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.gemm(
                      params, begin * unit,
                      std::min(end * unit, params.b->n_groups()));
                });
}

void CpuOps::RmsNorm(const RmsNormParams& params) {
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.rms_norm(params, begin, end);
  });
}

void CpuOps::Rope(const RopeParams& params) {
  impl_->Ranges(params.n_rows, params.n_heads * params.head_dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.rope(params, begin, end);
                });
}

void CpuOps::GatedGelu(const GatedGeluParams& params) {
  impl_->Ranges(params.n_rows, 4 * params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.gated_gelu(params, begin, end);
  });
}

void CpuOps::Add(const AddParams& params) {
  impl_->Ranges(params.n, 1, [&](int64_t begin, int64_t end) {
    AddRef({params.x + begin, params.y + begin, end - begin});
  });
}

void CpuOps::Softcap(const SoftcapParams& params) {
  // Runs of whole lanes, so that only the last one is ragged.
  impl_->Ranges((params.n + 15) / 16, 64, [&](int64_t begin, int64_t end) {
    impl_->kernels.softcap(params, begin * 16, std::min(end * 16, params.n));
  });
}

void CpuOps::ToBf16(const ToBf16Params& params) {
  impl_->Ranges((params.n + 15) / 16, 16, [&](int64_t begin, int64_t end) {
    impl_->kernels.to_bf16(params, begin * 16, std::min(end * 16, params.n));
  });
}

}  // namespace torpor::kernels
