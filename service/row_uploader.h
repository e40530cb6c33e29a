// SPDX-License-Identifier: Apache-2.0
//
// The rows of one suspend on their way to the daemon.

#ifndef TORPOR_SERVICE_ROW_UPLOADER_H_
#define TORPOR_SERVICE_ROW_UPLOADER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "service/client.h"
#include "service/row_outlet.h"

namespace torpor::service {

// Sends rows as the daemon lays them down: compact ones block by block, every
// slot of a block before the next, then those of a snapshot.
class RowUploader {
 public:
  // Both outlive the uploader.
  RowUploader(const SuspendCall& call, RowOutlet* outlet)
      : call_(call), outlet_(*outlet) {}

  // kCancelled when the daemon takes no more: the call's status tells why.
  absl::Status Run();

 private:
  absl::Status SendSlot(const OutgoingSlot& slot, uint64_t begin, uint64_t end);

  const SuspendCall& call_;
  RowOutlet& outlet_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_ROW_UPLOADER_H_
