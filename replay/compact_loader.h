// SPDX-License-Identifier: Apache-2.0
//
// Loads the compact rows of sleeping sessions into sequences, slot by slot in
// the order of the layers that read them, on a thread of its own: layers run
// while the rows of later ones still travel. Slots whose readers run no row
// under the plan are not read at all.

#ifndef TORPOR_REPLAY_COMPACT_LOADER_H_
#define TORPOR_REPLAY_COMPACT_LOADER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "replay/replayer.h"

namespace torpor::replay {

class CompactLoader {
 public:
  // One sequence a job. Everything outlives the loader; `cancelled` is polled
  // on its thread too.
  CompactLoader(const ModelLayout& layout, std::span<const ReplayJob> jobs,
                std::span<const std::unique_ptr<Sequence>> sequences,
                const std::function<bool()>& cancelled);
  // Stops soon, whatever is left.
  ~CompactLoader();
  CompactLoader(const CompactLoader&) = delete;
  CompactLoader& operator=(const CompactLoader&) = delete;

  // Returns when the rows that `layer` reads are loaded, of every job; or the
  // error that ended the loading.
  absl::Status WaitFor(uint32_t layer);

  // Bytes and time of job `i`, once its last layer was waited for.
  [[nodiscard]] uint64_t bytes(size_t i) const;
  [[nodiscard]] uint64_t microseconds(size_t i) const;

 private:
  void Loop();
  absl::Status LoadLayer(uint32_t layer);

  const ModelLayout& layout_;
  const std::span<const ReplayJob> jobs_;
  const std::span<const std::unique_ptr<Sequence>> sequences_;
  const std::function<bool()>& cancelled_;
  std::atomic<bool> stopping_{false};
  std::vector<std::atomic<uint64_t>> bytes_;
  std::vector<std::atomic<uint64_t>> microseconds_;

  Mutex mu_;
  CondVar progress_;
  // Layers [0, loaded_) are there.
  uint32_t loaded_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  // Last member: it uses the others.
  std::thread thread_;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_COMPACT_LOADER_H_
