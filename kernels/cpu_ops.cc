// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu_ops.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cpu_kernels.h"
#include "kernels/thread_pool.h"

namespace torpor::kernels {
namespace {

// Below this much work a loop stays on its caller's thread: waking another
// costs more.
constexpr int64_t kElementsPerTask = 16 * 1024;

constexpr std::align_val_t kAlign{64};

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

struct SplitRange {
  int64_t begin;
  int64_t end;
};

SplitRange SplitsOf(const AttentionTile& tile) {
  SplitRange splits{INT64_MAX, 0};
  for (int64_t i = 0; i < tile.n_positions; ++i) {
    const KeyRange keys = tile.segment->keys[tile.row + i];
    splits.begin = std::min(splits.begin, keys.begin / kSplitTokens);
    splits.end =
        std::max(splits.end, (keys.end + kSplitTokens - 1) / kSplitTokens);
  }
  return splits;
}

LatentShapes ShapesOf(const LatentAttentionParams& p) {
  return {ShapeOf(p.window_format, p.head_dim, 0),
          ShapeOf(p.entry_format, p.head_dim, 0)};
}

std::vector<AttentionTile> TilesOf(const AttentionParams& p) {
  const int64_t group = p.n_heads / p.shape.n_kv_heads;
  const int64_t heads = std::min(group, kTileRows);
  const int64_t positions = std::max<int64_t>(1, kTileRows / heads);
  std::vector<AttentionTile> tiles;
  for (int64_t s = 0; s < p.n_segments; ++s) {
    const AttentionSegment& segment = p.segments[s];
    for (int64_t kv = 0; kv < p.shape.n_kv_heads; ++kv) {
      for (int64_t h = 0; h < group; h += heads) {
        for (int64_t row = 0; row < segment.n_rows; row += positions) {
          tiles.push_back(
              {.segment = &segment,
               .kv_head = kv,
               .head = kv * group + h,
               .n_heads = std::min(heads, group - h),
               .row = row,
               .n_positions = std::min(positions, segment.n_rows - row)});
        }
      }
    }
  }
  return tiles;
}

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

struct CpuOps::Impl {
  Impl(Isa isa, int n_threads)
      : kernels(KernelsOf(isa)),
        pool(n_threads),
        thread_keys(static_cast<size_t>(pool.n_threads())),
        thread_work(thread_keys.size()) {}

  // `n` independent items of `item_elements` elements each, in contiguous runs.
  void Ranges(int64_t n, int64_t item_elements,
              const std::function<void(int64_t, int64_t)>& fn) {
    const int64_t enough = std::max<int64_t>(
        1, kElementsPerTask / std::max<int64_t>(1, item_elements));
    const int64_t tasks =
        std::clamp<int64_t>(n / enough, 1, 4 * pool.n_threads());
    pool.ParallelFor(tasks, [&](int64_t task, int) {
      fn(n * task / tasks, n * (task + 1) / tasks);
    });
  }

  TileMemory& Memory(size_t i, int64_t head_dim) {
    if (head_dim != memory_head_dim) {
      memory.clear();
      memory_head_dim = head_dim;
    }
    while (memory.size() <= i) memory.emplace_back(head_dim);
    return memory[i];
  }

  void OneByOne(const AttentionParams& p,
                const std::vector<AttentionTile>& tiles) {
    // Threads only read `memory` once it has a place for each of them.
    Memory(static_cast<size_t>(pool.n_threads() - 1), p.shape.head_dim);
    pool.ParallelFor(
        static_cast<int64_t>(tiles.size()), [&](int64_t t, int thread) {
          const TileMemory& m = memory[static_cast<size_t>(thread)];
          const AttentionTile& tile = tiles[static_cast<size_t>(t)];
          const AttentionPartial total = m.total();
          std::fill_n(total.sum, tile.n_rows(), 0.0f);
          const SplitRange splits = SplitsOf(tile);
          for (int64_t s = splits.begin; s < splits.end; ++s) {
            if (kernels.attention_split(p, tile, s, m.scratch(), m.part())) {
              kernels.merge_attention(tile.n_rows(), p.shape.head_dim, m.part(),
                                      total);
            }
          }
          kernels.finish_attention(p, tile, total);
        });
  }

  // Few tiles over many keys: the splits of a tile run beside each other and
  // are merged in order afterwards.
  void SplitBySplit(const AttentionParams& p,
                    const std::vector<AttentionTile>& tiles) {
    struct Work {
      size_t tile;
      int64_t split;
    };
    std::vector<Work> work;
    for (size_t t = 0; t < tiles.size(); ++t) {
      const SplitRange splits = SplitsOf(tiles[t]);
      for (int64_t s = splits.begin; s < splits.end; ++s) {
        work.push_back({t, s});
      }
    }
    Memory(work.size() - 1, p.shape.head_dim);
    std::vector<uint8_t> any(work.size());
    pool.ParallelFor(static_cast<int64_t>(work.size()), [&](int64_t i, int) {
      const auto w = static_cast<size_t>(i);
      const TileMemory& m = memory[w];
      any[w] = kernels.attention_split(p, tiles[work[w].tile], work[w].split,
                                       m.scratch(), m.part())
                   ? 1
                   : 0;
    });
    for (size_t w = 0; w < work.size();) {
      const AttentionTile& tile = tiles[work[w].tile];
      const AttentionPartial total = memory[w].total();
      std::fill_n(total.sum, tile.n_rows(), 0.0f);
      const size_t t = work[w].tile;
      for (; w < work.size() && work[w].tile == t; ++w) {
        if (any[w] == 0) continue;
        kernels.merge_attention(tile.n_rows(), p.shape.head_dim,
                                memory[w].part(), total);
      }
      kernels.finish_attention(p, tile, total);
    }
  }

  // Heads [head, head + n) of a row whose keys are decoded.
  void AttendHeads(const LatentAttentionParams& p, int64_t row, int64_t head,
                   int64_t n, const float* decoded, Floats* scratch) {
    const LatentKeys& keys = p.keys[row];
    const int64_t n_keys = keys.n_window + keys.n_entries;
    const int64_t width = (n + 15) / 16 * 16;
    float* f = scratch->AtLeast(width * (2 * p.head_dim + n_keys + 1));
    kernels.latent_attend(p, {.row = row,
                              .head = head,
                              .n_heads = n,
                              .n_keys = n_keys,
                              .decoded = decoded,
                              .q = f,
                              .scores = f + 2 * width * p.head_dim,
                              .inverse = f + width * (2 * p.head_dim + n_keys),
                              .acc = f + width * p.head_dim});
  }

  // Many rows: a thread has whole ones.
  void RowByRow(const LatentAttentionParams& p) {
    const LatentShapes shapes = ShapesOf(p);
    pool.ParallelFor(p.n_rows, [&](int64_t row, int thread) {
      const LatentKeys& keys = p.keys[row];
      const int64_t n_keys = keys.n_window + keys.n_entries;
      const auto t = static_cast<size_t>(thread);
      float* decoded =
          thread_keys[t].AtLeast(n_keys * (p.head_dim + kLatentPad));
      kernels.latent_decode(p, shapes, keys, 0, n_keys, decoded);
      for (int64_t head = 0; head < p.n_heads; head += kernels.latent_heads) {
        AttendHeads(p, row, head,
                    std::min(kernels.latent_heads, p.n_heads - head), decoded,
                    &thread_work[t]);
      }
    });
  }

  // Fewer rows than threads: they share a row's keys, then its heads.
  void HeadByHead(const LatentAttentionParams& p) {
    constexpr int64_t kKeysPerTask = 32;
    const LatentShapes shapes = ShapesOf(p);
    for (int64_t row = 0; row < p.n_rows; ++row) {
      const LatentKeys& keys = p.keys[row];
      const int64_t n_keys = keys.n_window + keys.n_entries;
      float* decoded =
          thread_keys[0].AtLeast(n_keys * (p.head_dim + kLatentPad));
      pool.ParallelFor(
          (n_keys + kKeysPerTask - 1) / kKeysPerTask, [&](int64_t task, int) {
            const int64_t begin = task * kKeysPerTask;
            kernels.latent_decode(p, shapes, keys, begin,
                                  std::min(begin + kKeysPerTask, n_keys),
                                  decoded);
          });
      pool.ParallelFor((p.n_heads + 15) / 16, [&](int64_t task, int thread) {
        AttendHeads(p, row, task * 16,
                    std::min<int64_t>(16, p.n_heads - task * 16), decoded,
                    &thread_work[static_cast<size_t>(thread)]);
      });
    }
  }

  void IndexScore(const IndexScoreParams& p) {
    const RowShape shape = ShapeOf(p.key_format, p.dim, 0);
    std::vector<IndexTile> tiles;
    for (int64_t row = 0; row < p.n_rows; row += kIndexRows) {
      const int64_t end = std::min(row + kIndexRows, p.n_rows);
      const int64_t keys =
          *std::max_element(p.n_visible + row, p.n_visible + end);
      for (int64_t key = 0; key < keys; key += kIndexKeys) {
        tiles.push_back({row, end, key, std::min(key + kIndexKeys, keys)});
      }
    }
    pool.ParallelFor(
        static_cast<int64_t>(tiles.size()), [&](int64_t i, int thread) {
          IndexTile tile = tiles[static_cast<size_t>(i)];
          tile.rows = thread_work[static_cast<size_t>(thread)].AtLeast(
              (16 + kIndexKeys) * p.dim);
          tile.keys = tile.rows + 16 * p.dim;
          kernels.index_score(p, shape, tile);
        });
  }

  const CpuKernels& kernels;
  ThreadPool pool;
  // A thread's own; what a row's heads share is the first's.
  std::vector<Floats> thread_keys;
  std::vector<Floats> thread_work;
  std::vector<TileMemory> memory;
  int64_t memory_head_dim = 0;
};

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
  auto* page = static_cast<uint8_t*>(Allocate(shape.page_bytes()));
  std::memset(page, 0, shape.page_bytes());
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

void CpuOps::EncodeRows(const EncodeRowsParams& params) {
  const RowShape shape = ShapeOf(params.format, params.dim, params.rope_dim);
  assert(params.dim % 16 == 0 && params.rope_dim % 16 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.encode_rows(params, shape, begin, end);
  });
}

void CpuOps::DecodeRows(const DecodeRowsParams& params) {
  const RowShape shape = ShapeOf(params.format, params.dim, params.rope_dim);
  assert(params.dim % 16 == 0 && params.rope_dim % 16 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.decode_rows(params, shape, begin, end);
  });
}

void CpuOps::DecodeWeights(const DecodeWeightsParams& params) {
  assert(params.dim % 16 == 0 && params.block_columns % 16 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.decode_weights(params, begin, end);
  });
}

void CpuOps::FakeQuantFp8(const FakeQuantFp8Params& params) {
  assert(params.dim % 32 == 0);
  impl_->Ranges(params.n_rows, params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.fake_quant_fp8(params, begin, end);
  });
}

void CpuOps::Attention(const AttentionParams& params) {
  const std::vector<AttentionTile> tiles = TilesOf(params);
  if (tiles.empty()) return;
  int64_t splits = 0;
  for (const AttentionTile& tile : tiles) {
    const SplitRange range = SplitsOf(tile);
    splits = std::max(splits, range.end - range.begin);
  }
  const auto n_tiles = static_cast<int64_t>(tiles.size());
  if (n_tiles < impl_->pool.n_threads() && splits > 1) {
    impl_->SplitBySplit(params, tiles);
  } else {
    impl_->OneByOne(params, tiles);
  }
}

void CpuOps::RopeTail(const RopeTailParams& params) {
  impl_->Ranges(params.n_rows, params.n_heads * params.rope_dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.rope_tail(params, begin, end);
                });
}

void CpuOps::GatedSilu(const GatedSiluParams& params) {
  impl_->Ranges(params.n_rows, 4 * params.dim, [&](int64_t begin, int64_t end) {
    impl_->kernels.gated_silu(params, begin, end);
  });
}

void CpuOps::LatentAttention(const LatentAttentionParams& params) {
  if (params.n_rows < impl_->pool.n_threads()) {
    impl_->HeadByHead(params);
  } else {
    impl_->RowByRow(params);
  }
}

void CpuOps::IndexScore(const IndexScoreParams& params) {
  impl_->IndexScore(params);
}

void CpuOps::HyperMix(const HyperMixParams& params) {
  impl_->Ranges(params.n_rows, params.n_streams * params.dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.hyper_mix(params, begin, end);
                });
}

void CpuOps::HyperCollapse(const HyperCollapseParams& params) {
  impl_->Ranges(params.n_rows, params.n_streams * params.dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.hyper_collapse(params, begin, end);
                });
}

void CpuOps::HyperExpand(const HyperExpandParams& params) {
  impl_->Ranges(params.n_rows, params.n_streams * params.dim,
                [&](int64_t begin, int64_t end) {
                  impl_->kernels.hyper_expand(params, begin, end);
                });
}

}  // namespace torpor::kernels
