// SPDX-License-Identifier: Apache-2.0
//
// The KV of one sequence for models whose layers keep K and V rows per token:
// all pages of full layers, a ring of pages for sliding ones. Rows go in and
// out row-major, [n_kv_heads, head_dim] in the cache's dtype; between, they
// stand in a backend's pages, as its attention wants them. Not thread-safe, but
// rows of one layer may be imported while others run.

#ifndef TORPOR_REPLAY_KV_CACHE_H_
#define TORPOR_REPLAY_KV_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "kernels/kv_page.h"
#include "kernels/ops.h"
#include "replay/model.h"

namespace torpor::replay {

// One layer's K and V.
struct KvLayerSpec {
  kernels::KvShape shape;
  // Tokens a query sees, itself included; 0 = all (every page is kept).
  uint64_t window = 0;
  // Layout slots of K and V.
  uint32_t k_slot = 0;
  uint32_t v_slot = 0;
};

// Of a forward: [n, n_kv_heads, head_dim] f32 in the backend's memory, strides
// in elements.
struct KvRows {
  const float* k = nullptr;
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
};

class KvCache final : public Sequence {
 public:
  // One spec a layer. A ring holds a window and `max_rows` new rows beside it.
  // `ops` outlives the cache.
  KvCache(kernels::Ops* ops, std::vector<KvLayerSpec> layers,
          uint64_t max_rows);
  ~KvCache() override;
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  absl::Status ImportRows(uint32_t slot, uint64_t row_begin,
                          std::span<const uint8_t> bytes) override;
  absl::Status ExportRows(uint32_t slot, Rows rows,
                          std::span<uint8_t> out) const override;
  uint64_t bytes() const override;

  // Rows [pos, pos + n) of a layer.
  void PutRows(uint32_t layer, uint64_t pos, uint64_t n, KvRows rows);
  [[nodiscard]] kernels::KvView View(uint32_t layer) const;

  // What such a cache takes for n tokens.
  static uint64_t BytesFor(const kernels::Ops& ops,
                           std::span<const KvLayerSpec> layers,
                           uint64_t max_rows, uint64_t n_tokens);

 private:
  struct Layer {
    KvLayerSpec spec;
    std::vector<uint8_t*> pages;
    // One past the last row that was put; rows of a ring below
    // end - capacity are gone.
    uint64_t end = 0;
  };
  struct SlotPlace {
    uint32_t layer = 0;
    bool is_k = false;
    bool known = false;
  };

  // Makes room for rows up to `end` of a layer.
  void Reserve(uint32_t layer, uint64_t end);
  [[nodiscard]] SlotPlace Place(uint32_t slot) const;
  [[nodiscard]] kernels::KvRowBytes RowBytes(const SlotPlace& place,
                                             Rows rows) const;

  kernels::Ops& ops_;
  std::vector<Layer> layers_;
  std::vector<SlotPlace> places_;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_KV_CACHE_H_
