// SPDX-License-Identifier: Apache-2.0
//
// What the files of CpuOps share: its path, its threads and their memory.
// Internal to kernels/.

#ifndef TORPOR_KERNELS_CPU_OPS_IMPL_H_
#define TORPOR_KERNELS_CPU_OPS_IMPL_H_

#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu_kernels.h"
#include "kernels/cpu_ops.h"
#include "kernels/thread_pool.h"

namespace torpor::kernels {

inline constexpr std::align_val_t kAlign{64};

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t n)
      : data_(static_cast<uint8_t*>(operator new(n, kAlign))) {}
  ~AlignedBytes() { operator delete(data_, kAlign); }
  AlignedBytes(AlignedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)) {}
  AlignedBytes& operator=(AlignedBytes&&) = delete;
  [[nodiscard]] uint8_t* get() const { return data_; }

 private:
  uint8_t* data_;
};

// Partial results and scratch of one running tile.
class TileMemory {
 public:
  explicit TileMemory(int64_t head_dim)
      : head_dim_(head_dim),
        bytes_(static_cast<size_t>(kTileRows *
                                   (3 * head_dim + 2 * kPageTokens + 4) * 4)) {}

  [[nodiscard]] AttentionPartial total() const { return PartialAt(0); }
  [[nodiscard]] AttentionPartial part() const {
    return PartialAt(kTileRows * (head_dim_ + 2));
  }
  [[nodiscard]] AttentionScratch scratch() const {
    float* f = floats() + 2 * kTileRows * (head_dim_ + 2);
    return {.q = f,
            .scores = f + kTileRows * head_dim_,
            .weights = f + kTileRows * (head_dim_ + kPageTokens)};
  }

 private:
  [[nodiscard]] float* floats() const {
    return reinterpret_cast<float*>(bytes_.get());
  }
  [[nodiscard]] AttentionPartial PartialAt(int64_t at) const {
    float* f = floats() + at;
    return {.max = f, .sum = f + kTileRows, .acc = f + 2 * kTileRows};
  }

  int64_t head_dim_;
  AlignedBytes bytes_;
};

// Floats that live as long as the pool, as many as were ever asked for.
class Floats {
 public:
  float* AtLeast(int64_t n) {
    if (n > n_) {
      bytes_.emplace(static_cast<size_t>(n) * sizeof(float));
      n_ = n;
    }
    return reinterpret_cast<float*>(bytes_->get());
  }

 private:
  int64_t n_ = 0;
  std::optional<AlignedBytes> bytes_;
};

struct CpuOps::Impl {
  Impl(Isa isa, int n_threads)
      : kernels(KernelsOf(isa)),
        pool(n_threads),
        thread_keys(static_cast<size_t>(pool.n_threads())),
        thread_work(thread_keys.size()) {}

  // `n` independent items of `item_elements` elements each, in contiguous runs.
  void Ranges(int64_t n, int64_t item_elements,
              const std::function<void(int64_t, int64_t)>& fn);

  // Attention, in cpu_ops_attention.cc.
  TileMemory& Memory(size_t i, int64_t head_dim);
  void OneByOne(const AttentionParams& p,
                const std::vector<AttentionTile>& tiles);
  // Few tiles over many keys: the splits of a tile run beside each other and
  // are merged in order afterwards.
  void SplitBySplit(const AttentionParams& p,
                    const std::vector<AttentionTile>& tiles);
  // Heads [head, head + n) of a row whose keys are decoded.
  void AttendHeads(const LatentAttentionParams& p, int64_t row, int64_t head,
                   int64_t n, const float* decoded, Floats* scratch);
  // Many rows: a thread has whole ones.
  void RowByRow(const LatentAttentionParams& p);
  // Fewer rows than threads: they share a row's keys, then its heads.
  void HeadByHead(const LatentAttentionParams& p);

  const CpuKernels& kernels;
  ThreadPool pool;
  // A thread's own; what a row's heads share is the first's.
  std::vector<Floats> thread_keys;
  std::vector<Floats> thread_work;
  std::vector<TileMemory> memory;
  int64_t memory_head_dim = 0;
  // Rows of one group of a grouped GEMM.
  Floats gathered;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CPU_OPS_IMPL_H_
