// SPDX-License-Identifier: Apache-2.0
//
// Rows of a lease on their way to a client: cut into pieces, sharded, with
// checksums, into a RowOutlet.

#ifndef TORPOR_SERVICE_ROW_SENDER_H_
#define TORPOR_SERVICE_ROW_SENDER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/replayer.h"
#include "service/lease.h"
#include "service/model_registry.h"
#include "service/row_outlet.h"

namespace torpor::service {

// Which part of head-sharded rows a reader wants.
struct Shard {
  uint32_t index = 0;
  uint32_t n = 1;
};

// kInvalidArgument when the layout cannot be cut like that.
absl::StatusOr<Shard> CheckShard(uint32_t shard, uint32_t n_shards,
                                 const replay::ModelLayout& layout);

// Bytes of every row that the lease may send: compact ones, and those of the
// window.
uint64_t CompactBytes(Lease& lease);
uint64_t WindowBytes(Lease& lease);

// Not thread-safe.
class RowSender {
 public:
  // Whole rows into a buffer; returns their XXH3-64.
  using Fill =
      std::function<absl::StatusOr<uint64_t>(replay::Rows, std::span<uint8_t>)>;

  // Model and outlet outlive the sender.
  RowSender(const RegisteredModel& model, Shard shard, RowOutlet* outlet)
      : model_(model), shard_(shard), outlet_(*outlet) {}

  // Rows of a slot (layout index).
  absl::Status Send(uint32_t index, replay::Rows rows, const Fill& fill);

 private:
  const RegisteredModel& model_;
  const Shard shard_;
  RowOutlet& outlet_;
  std::vector<uint8_t> whole_;
};

// Compact rows of tokens [begin, end), slot by slot; counted in the lease's
// receipt.
absl::Status SendCompact(Lease& lease, std::span<const uint32_t> slots,
                         uint64_t begin, uint64_t end, Shard shard,
                         RowOutlet* outlet);
absl::Status SendWindow(Lease& lease, const replay::WindowState& window,
                        Shard shard, RowOutlet* outlet);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_ROW_SENDER_H_
