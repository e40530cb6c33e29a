// SPDX-License-Identifier: Apache-2.0
//
// CpuOps: attention, and how its work is spread over threads.

#include <algorithm>
#include <vector>

#include "kernels/cpu_ops.h"
#include "kernels/cpu_ops_impl.h"

namespace torpor::kernels {
namespace {

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

TileMemory& CpuOps::Impl::Memory(size_t i, int64_t head_dim) {
  if (head_dim != memory_head_dim) {
    memory.clear();
    memory_head_dim = head_dim;
  }
  while (memory.size() <= i) memory.emplace_back(head_dim);
  return memory[i];
}

void CpuOps::Impl::OneByOne(const AttentionParams& p,
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

void CpuOps::Impl::SplitBySplit(const AttentionParams& p,
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
      kernels.merge_attention(tile.n_rows(), p.shape.head_dim, memory[w].part(),
                              total);
    }
    kernels.finish_attention(p, tile, total);
  }
}

void CpuOps::Impl::AttendHeads(const LatentAttentionParams& p, int64_t row,
                               int64_t head, int64_t n, const float* decoded,
                               Floats* scratch) {
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

void CpuOps::Impl::RowByRow(const LatentAttentionParams& p) {
  const LatentShapes shapes = ShapesOf(p);
  pool.ParallelFor(p.n_rows, [&](int64_t row, int thread) {
    const LatentKeys& keys = p.keys[row];
    const int64_t n_keys = keys.n_window + keys.n_entries;
    const auto t = static_cast<size_t>(thread);
    float* decoded = thread_keys[t].AtLeast(n_keys * (p.head_dim + kLatentPad));
    kernels.latent_decode(p, shapes, keys, 0, n_keys, decoded);
    for (int64_t head = 0; head < p.n_heads; head += kernels.latent_heads) {
      AttendHeads(p, row, head,
                  std::min(kernels.latent_heads, p.n_heads - head), decoded,
                  &thread_work[t]);
    }
  });
}

void CpuOps::Impl::HeadByHead(const LatentAttentionParams& p) {
  constexpr int64_t kKeysPerTask = 32;
  const LatentShapes shapes = ShapesOf(p);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const LatentKeys& keys = p.keys[row];
    const int64_t n_keys = keys.n_window + keys.n_entries;
    float* decoded = thread_keys[0].AtLeast(n_keys * (p.head_dim + kLatentPad));
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

void CpuOps::LatentAttention(const LatentAttentionParams& params) {
  if (params.n_rows < impl_->pool.n_threads()) {
    impl_->HeadByHead(params);
  } else {
    impl_->RowByRow(params);
  }
}

void CpuOps::LatentAttention(const PagedLatentAttentionParams& params) {
  const LatentKeyLists lists(params);
  LatentAttentionParams listed = params.attention;
  listed.keys = lists.keys();
  LatentAttention(listed);
}

void CpuOps::IndexScore(const IndexScoreParams& p) {
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
  impl_->pool.ParallelFor(
      static_cast<int64_t>(tiles.size()), [&](int64_t i, int thread) {
        IndexTile tile = tiles[static_cast<size_t>(i)];
        tile.rows = impl_->thread_work[static_cast<size_t>(thread)].AtLeast(
            (16 + kIndexKeys) * p.dim);
        tile.keys = tile.rows + 16 * p.dim;
        impl_->kernels.index_score(p, shape, tile);
      });
}

}  // namespace torpor::kernels
