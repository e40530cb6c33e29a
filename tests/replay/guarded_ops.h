// SPDX-License-Identifier: Apache-2.0
//
// A backend whose memory only its own calls may touch: the CPU's ops over pages
// that are PROT_NONE between calls, so that a stray read or write of the host
// ends the test. What it hands out is filled with NaN. Uploads and downloads
// check their direction.

#ifndef TORPOR_TESTS_REPLAY_GUARDED_OPS_H_
#define TORPOR_TESTS_REPLAY_GUARDED_OPS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kernels/cpu_ops.h"

namespace torpor::kernels {

// One reserved range, opened while any call runs. Any thread.
class GuardedArena {
 public:
  GuardedArena();
  ~GuardedArena();
  GuardedArena(const GuardedArena&) = delete;
  GuardedArena& operator=(const GuardedArena&) = delete;

  // Holds the range open.
  class Opened {
   public:
    explicit Opened(GuardedArena* arena) : arena_(*arena) { arena_.Open(); }
    ~Opened() { arena_.Close(); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    GuardedArena& arena_;
  };

  // Filled with bytes that are NaN in every dtype.
  void* Allocate(size_t bytes);
  // Poisons it again; aborts for what was not allocated.
  void Free(void* p);
  [[nodiscard]] bool Has(const void* p) const;
  // Bytes allocated now, and at most since the last call of ResetPeak.
  [[nodiscard]] size_t bytes() const;
  [[nodiscard]] size_t peak() const;
  void ResetPeak();

 private:
  void Open();
  void Close();

  mutable std::mutex mu_;
  uint8_t* base_ = nullptr;
  // End of what was ever handed out, and of what the kernel has open.
  size_t used_ = 0;
  int open_ = 0;
  size_t bytes_ = 0;
  size_t peak_ = 0;
  std::map<uint8_t*, size_t> held_;
  std::multimap<size_t, uint8_t*> free_;
};

class GuardedOps final : public Ops {
 public:
  GuardedOps(Isa isa, int n_threads);

  [[nodiscard]] GuardedArena& arena() { return arena_; }
  // Calls of ops so far.
  [[nodiscard]] uint64_t n_calls() const { return n_calls_; }

  // The CPU's: results are to be the same.
  [[nodiscard]] const std::string& name() const override { return cpu_.name(); }
  [[nodiscard]] bool is_host() const override { return false; }
  void* Allocate(size_t bytes) override { return arena_.Allocate(bytes); }
  void Free(void* p) override { arena_.Free(p); }
  void Upload(void* to, const void* from, size_t bytes) override;
  void Download(void* to, const void* from, size_t bytes) override;
  absl::Status Finish() override { return cpu_.Finish(); }
  std::shared_ptr<const uint8_t> Place(std::span<const uint8_t> bytes) override;
  PackedMatrix Place(PackedMatrix matrix) override;

#define TORPOR_GUARDED(Op) \
  void Op(const Op##Params& params) override { Call(&CpuOps::Op, params); }
  TORPOR_GUARDED(EmbedRows)
  TORPOR_GUARDED(CopyRows)
  TORPOR_GUARDED(Gemm)
  TORPOR_GUARDED(RmsNorm)
  TORPOR_GUARDED(Rope)
  TORPOR_GUARDED(GatedGelu)
  TORPOR_GUARDED(Add)
  TORPOR_GUARDED(Softcap)
  TORPOR_GUARDED(ToBf16)
  TORPOR_GUARDED(Attention)
  TORPOR_GUARDED(ScatterRows)
  TORPOR_GUARDED(GroupedGemm)
  TORPOR_GUARDED(RopeTail)
  TORPOR_GUARDED(GatedSilu)
  TORPOR_GUARDED(RoundBf16)
  TORPOR_GUARDED(Scale)
  TORPOR_GUARDED(FakeQuantFp8)
  TORPOR_GUARDED(EncodeRows)
  TORPOR_GUARDED(DecodeRows)
  TORPOR_GUARDED(PoolMembers)
  TORPOR_GUARDED(IndexScore)
  TORPOR_GUARDED(CandidateBlocks)
  TORPOR_GUARDED(KeepBlocks)
  TORPOR_GUARDED(TopK)
  TORPOR_GUARDED(HyperMix)
  TORPOR_GUARDED(HyperCollapse)
  TORPOR_GUARDED(HyperExpand)
  TORPOR_GUARDED(EngramGate)
  TORPOR_GUARDED(ChooseExperts)
  TORPOR_GUARDED(ChooseSoftmaxExperts)
  TORPOR_GUARDED(GroupExperts)
  TORPOR_GUARDED(BiasExperts)
  TORPOR_GUARDED(SumExperts)
  TORPOR_GUARDED(PutKv)
#undef TORPOR_GUARDED
  void LatentAttention(const PagedLatentAttentionParams& params) override;

  [[nodiscard]] size_t PageBytes(const KvShape& shape) const override {
    return cpu_.PageBytes(shape);
  }
  uint8_t* NewPage(const KvShape& shape) override {
    return NewPage(shape.page_bytes());
  }
  uint8_t* NewPage(size_t bytes) override;
  absl::Status ImportKv(const KvRowBytes& to,
                        std::span<const uint8_t> from) override;
  absl::Status ExportKv(const KvRowBytes& from, std::span<uint8_t> to) override;
  absl::Status ImportRecords(const RecordRange& to,
                             std::span<const uint8_t> from) override;
  absl::Status ExportRecords(const RecordRange& from,
                             std::span<uint8_t> to) override;

 private:
  template <typename Params>
  void Call(void (CpuOps::*op)(const Params&), const Params& params) {
    const GuardedArena::Opened opened(&arena_);
    ++n_calls_;
    (cpu_.*op)(params);
  }
  std::shared_ptr<uint8_t> Copy(const uint8_t* bytes, size_t n);

  GuardedArena arena_;
  CpuOps cpu_;
  uint64_t n_calls_ = 0;
};

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_REPLAY_GUARDED_OPS_H_
