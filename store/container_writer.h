// SPDX-License-Identifier: Apache-2.0
//
// A leased session as a container, piece by piece. The bytes depend on the
// session at its version alone, so a transfer that broke goes on at a block
// with the bytes it would have had.

#ifndef TORPOR_STORE_CONTAINER_WRITER_H_
#define TORPOR_STORE_CONTAINER_WRITER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "store/container.h"
#include "store/session_store.h"

namespace torpor::store {

// Takes the next bytes; false when nobody wants more.
using ContainerSink = std::function<bool(std::span<const uint8_t>)>;

struct ContainerOptions {
  // Blocks that the reader has; 0 begins with the outline, the number of blocks
  // with the tail.
  uint64_t from_block = 0;
  // The chain's value behind them; nullopt reads them again to compute it.
  std::optional<Hash256> chain;
  // ContainerHeader::model_layout.
  std::string model_layout;
};

// Reads are short and one piece is held at a time. kDataLoss, with the place,
// before a damaged byte leaves, and before the first byte when the damage is
// known; kOutOfRange beyond the blocks there are; kCancelled when `sink` says
// so.
absl::Status WriteContainer(SessionLease* lease,
                            const ContainerOptions& options,
                            const ContainerSink& sink);

}  // namespace torpor::store

#endif  // TORPOR_STORE_CONTAINER_WRITER_H_
