// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's sparse attention: scores and picks of the indexer, the names
// of a row's keys, attention over them.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/index_score_cuda.h"
#include "kernels/latent_attention_cuda.h"
#include "kernels/latent_keys_cuda.h"
#include "kernels/top_k_cuda.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

using kernels::KeyRange;
using kernels::LatentKeys;
using kernels::RowFormat;

// ---- the indexer -----------------------------------------------------------

KernelCase IndexScore(bool tiny) {
  const int64_t rows = tiny ? 2 : 128;
  const int64_t keys = tiny ? 70 : 8192;
  const int64_t heads = tiny ? 2 : 64;
  constexpr int64_t kDim = 128;
  constexpr int64_t kPageRows = 64;
  const int64_t n_pages = (keys + kPageRows - 1) / kPageRows;
  const int64_t key_bytes = kernels::RowBytes(RowFormat::kIndexFp4, kDim, 0);
  const auto records =
      Records(RowFormat::kIndexFp4, n_pages * kPageRows, kDim, 61);
  const auto q = Normals(rows * heads * kDim, 62);
  const auto weights = Normals(rows * heads, 63);
  const auto params = [=](int64_t n, const float* of_q, const float* of_weights,
                          const uint8_t* const* pages, const int64_t* visible,
                          float* scores) {
    return kernels::IndexScoreParams{.n_rows = n,
                                     .n_heads = heads,
                                     .dim = kDim,
                                     .scale = 0.5f,
                                     .q = of_q,
                                     .weights = of_weights,
                                     .pages = pages,
                                     .page_rows = kPageRows,
                                     .n_visible = visible,
                                     .scores = scores,
                                     .scores_stride = keys};
  };
  const auto device_records = OnDevice(records);
  const auto pages = OnDevice(PagesOf<const uint8_t>(
      device_records->data(), n_pages, kPageRows * key_bytes));
  const auto device_q = OnDevice(q);
  const auto device_weights = OnDevice(weights);
  const auto visible =
      OnDevice(std::vector<int64_t>(static_cast<size_t>(rows), keys));
  const auto scores = OnDevice<float>(rows * keys);
  return {
      .shape = absl::StrFormat("%d rows, %d keys, %d heads", rows, keys, heads),
      // Rows beside the first find the keys in the second-level cache.
      .floor = {.bytes = static_cast<double>(keys * key_bytes) +
                         4.0 * static_cast<double>(rows * keys +
                                                   rows * heads * kDim),
                .operations =
                    2.0 * static_cast<double>(rows * keys * heads * kDim)},
      .launch =
          [=, keep = device_records] {
            return kernels::IndexScoreCuda(
                params(rows, device_q->data(), device_weights->data(),
                       pages->data(), visible->data(), scores->data()),
                nullptr);
          },
      .fault =
          [=] {
            // Of the last row.
            auto wanted = Zeros(keys);
            const auto host_pages = PagesOf<const uint8_t>(
                records.data(), n_pages, kPageRows * key_bytes);
            kernels::IndexScoreRef(
                params(1, q.data() + (rows - 1) * heads * kDim,
                       weights.data() + (rows - 1) * heads, host_pages.data(),
                       &keys, wanted.data()));
            const auto got = scores->Download();
            return Differ(std::span(got).last(wanted.size()), wanted, 1e-5);
          }};
}

// Rows of scores that everybody sees whole, and who chooses among them.
struct Scores {
  explicit Scores(bool tiny)
      : rows(tiny ? 2 : 512),
        n(tiny ? 300 : 16'384),
        values(Normals(rows * n, 64)),
        counts(static_cast<size_t>(rows), n),
        device(OnDevice(values)),
        device_counts(OnDevice(counts)) {
    // No two alike: what comes again is a little more.
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += 1e-3f * static_cast<float>(i >> 20);
    }
    device->Upload(values);
  }
  [[nodiscard]] double bytes() const {
    return 4.0 * static_cast<double>(rows * n);
  }
  [[nodiscard]] std::string shape() const {
    return absl::StrFormat("%d rows of %d", rows, n);
  }

  const int64_t rows;
  const int64_t n;
  std::vector<float> values;
  const std::vector<int64_t> counts;
  const Device<float> device;
  const Device<int64_t> device_counts;
};

KernelCase TopK(bool tiny) {
  const auto s = std::make_shared<const Scores>(tiny);
  const int64_t k = tiny ? 20 : 512;
  const auto ids = OnDevice<int32_t>(s->rows * k);
  const auto n_ids = OnDevice<int32_t>(s->rows);
  return {
      .shape = s->shape() + absl::StrFormat(", %d", k),
      // Of the four reads three find the second-level cache.
      .floor = {.bytes = s->bytes() + 4.0 * static_cast<double>(s->rows * k)},
      .launch =
          [=] {
            return kernels::TopKCuda({.scores = s->device->data(),
                                      .n_rows = s->rows,
                                      .scores_stride = s->n,
                                      .n_scores = s->device_counts->data(),
                                      .k = k,
                                      .ids = ids->data(),
                                      .n_ids = n_ids->data()},
                                     nullptr);
          },
      .fault =
          [=] {
            std::vector<int32_t> wanted(ids->size());
            std::vector<int32_t> counts(n_ids->size());
            kernels::TopKRef({.scores = s->values.data(),
                              .n_rows = s->rows,
                              .scores_stride = s->n,
                              .n_scores = s->counts.data(),
                              .k = k,
                              .ids = wanted.data(),
                              .n_ids = counts.data()});
            return Differ(ids->Download(), wanted);
          }};
}

constexpr int64_t kBlock = 64;
constexpr int64_t kBlocks = 4;

std::vector<int32_t> ChosenBlocks(const Scores& s) {
  std::vector<int32_t> blocks(static_cast<size_t>(s.rows * kBlocks));
  std::vector<int32_t> counts(static_cast<size_t>(s.rows));
  kernels::CandidateBlocksRef({.scores = s.values.data(),
                               .n_rows = s.rows,
                               .scores_stride = s.n,
                               .n_scores = s.counts.data(),
                               .block_size = kBlock,
                               .n_blocks = kBlocks,
                               .blocks = blocks.data(),
                               .n_chosen = counts.data()});
  return blocks;
}

KernelCase CandidateBlocks(bool tiny) {
  const auto s = std::make_shared<const Scores>(tiny);
  const auto blocks = OnDevice<int32_t>(s->rows * kBlocks);
  const auto n_chosen = OnDevice<int32_t>(s->rows);
  const kernels::CandidateBlocksParams params{
      .scores = s->device->data(),
      .n_rows = s->rows,
      .scores_stride = s->n,
      .n_scores = s->device_counts->data(),
      .block_size = kBlock,
      .n_blocks = kBlocks,
      .blocks = blocks->data(),
      .n_chosen = n_chosen->data()};
  const auto scratch = OnDevice<uint8_t>(
      static_cast<int64_t>(kernels::CandidateBlocksScratchBytes(params)));
  return {
      .shape = s->shape(),
      .floor = {.bytes = s->bytes()},
      .launch =
          [=, keep = n_chosen] {
            return kernels::CandidateBlocksCuda(params, scratch->data(),
                                                nullptr);
          },
      .fault = [=] { return Differ(blocks->Download(), ChosenBlocks(*s)); }};
}

KernelCase KeepBlocks(bool tiny) {
  const auto s = std::make_shared<const Scores>(tiny);
  const auto host_blocks = ChosenBlocks(*s);
  const std::vector<int32_t> counts(static_cast<size_t>(s->rows), kBlocks);
  const auto blocks = OnDevice(host_blocks);
  const auto n_chosen = OnDevice(counts);
  return {
      .shape = s->shape(),
      .floor = {.bytes = s->bytes() -
                         4.0 * static_cast<double>(s->rows * kBlocks * kBlock)},
      .launch =
          [=] {
            return kernels::KeepBlocksCuda(
                {.scores = s->device->data(),
                 .n_rows = s->rows,
                 .scores_stride = s->n,
                 .n_scores = s->device_counts->data(),
                 .block_size = kBlock,
                 .blocks = blocks->data(),
                 .n_blocks = kBlocks,
                 .n_chosen = n_chosen->data()},
                nullptr);
          },
      .fault =
          [=] {
            auto wanted = s->values;
            kernels::KeepBlocksRef({.scores = wanted.data(),
                                    .n_rows = s->rows,
                                    .scores_stride = s->n,
                                    .n_scores = s->counts.data(),
                                    .block_size = kBlock,
                                    .blocks = host_blocks.data(),
                                    .n_blocks = kBlocks,
                                    .n_chosen = counts.data()});
            return Differ(s->device->Download(), wanted);
          }};
}

// ---- latent attention ------------------------------------------------------

// Rows that read the same window and picks of their own, named by the kernel
// that names them.
class LatentCase {
 public:
  explicit LatentCase(bool tiny)
      : rows(tiny ? 2 : 512),
        heads(tiny ? 2 : 64),
        n_window(tiny ? 5 : 128),
        n_picks(tiny ? 6 : 512),
        n_entries(tiny ? 40 : 8192),
        window_rows(Records(RowFormat::kWindowFp8, kPageRows * Pages(n_window),
                            kDim, 71)),
        entry_rows(Records(RowFormat::kMainFp4, kPageRows * Pages(n_entries),
                           kDim, 72)),
        q(Normals(rows * heads * kDim, 73)),
        sinks(Normals(heads, 74)) {
    const int64_t step = n_entries / n_picks;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n_picks; ++i) {
        picks.push_back(static_cast<int32_t>(i * step + r % step));
      }
    }
    window_ = OnDevice(window_rows);
    entries_ = OnDevice(entry_rows);
    window_pages_ = OnDevice(PagesOf<uint8_t>(window_->data(), Pages(n_window),
                                              kPageRows * kWindowBytes));
    entry_pages_ = OnDevice(PagesOf<uint8_t>(entries_->data(), Pages(n_entries),
                                             kPageRows * kEntryBytes));
    const auto n = static_cast<size_t>(rows);
    windows_ = OnDevice(std::vector<KeyRange>(n, {0, n_window}));
    picks_ = OnDevice(picks);
    n_picks_ = OnDevice(std::vector<int32_t>(n, static_cast<int32_t>(n_picks)));
    segment_ = OnDevice(std::vector<kernels::LatentSegment>{
        {.n_rows = rows,
         .window = {window_pages_->data(), Pages(n_window), kPageRows, 0,
                    kWindowBytes},
         .window_keys = windows_->data(),
         .entries = {entry_pages_->data(), Pages(n_entries), kPageRows, 0,
                     kEntryBytes},
         .picks = picks_->data(),
         .n_picks = n_picks_->data(),
         .picks_stride = n_picks}});
    lists_ = OnDevice<const uint8_t*>(rows * keys());
    keys_ = OnDevice<LatentKeys>(rows);
    q_ = OnDevice(q);
    sinks_ = OnDevice(sinks);
    out_ = OnDevice<float>(rows * heads * kDim);
  }

  [[nodiscard]] int64_t keys() const { return n_window + n_picks; }

  int Name() const {
    return kernels::NameLatentKeysCuda({.segments = segment_->data(),
                                        .n_segments = 1,
                                        .n_rows_max = rows,
                                        .lists = lists_->data(),
                                        .n_keys_max = keys(),
                                        .keys = keys_->data()},
                                       nullptr);
  }
  int Attend() const {
    return kernels::LatentAttentionCuda(
        Params(rows, sinks_->data(), q_->data(), keys_->data(), out_->data()),
        keys(), nullptr);
  }

  // Where row r's keys begin.
  [[nodiscard]] std::vector<const uint8_t*> Named(
      int64_t r, const uint8_t* window, const uint8_t* entries) const {
    std::vector<const uint8_t*> out;
    for (int64_t i = 0; i < n_window; ++i) {
      out.push_back(window + i * kWindowBytes);
    }
    for (int64_t i = 0; i < n_picks; ++i) {
      out.push_back(entries +
                    picks[static_cast<size_t>(r * n_picks + i)] * kEntryBytes);
    }
    return out;
  }
  [[nodiscard]] std::string NameFault() const {
    std::vector<const uint8_t*> wanted;
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = Named(r, window_->data(), entries_->data());
      wanted.insert(wanted.end(), row.begin(), row.end());
    }
    return Differ(lists_->Download(), wanted);
  }
  // Of the last row.
  [[nodiscard]] std::string AttendFault() const {
    const auto named = Named(rows - 1, window_rows.data(), entry_rows.data());
    const LatentKeys host{named.data(), n_window, named.data() + n_window,
                          n_picks};
    auto wanted = Zeros(heads * kDim);
    kernels::LatentAttentionRef(Params(1, sinks.data(),
                                       q.data() + (rows - 1) * heads * kDim,
                                       &host, wanted.data()));
    const auto got = out_->Download();
    return Differ(std::span(got).last(wanted.size()), wanted, 1e-5);
  }

  static constexpr int64_t kDim = 512;
  static constexpr int64_t kPageRows = 64;
  static constexpr int64_t kWindowBytes =
      kernels::RowBytes(RowFormat::kWindowFp8, kDim, 0);
  static constexpr int64_t kEntryBytes =
      kernels::RowBytes(RowFormat::kMainFp4, kDim, 0);
  const int64_t rows, heads, n_window, n_picks, n_entries;

 private:
  static int64_t Pages(int64_t n) { return (n + kPageRows - 1) / kPageRows; }
  [[nodiscard]] kernels::LatentAttentionParams Params(int64_t n,
                                                      const float* of_sinks,
                                                      const float* of_q,
                                                      const LatentKeys* of_keys,
                                                      float* to) const {
    return {.n_rows = n,
            .n_heads = heads,
            .head_dim = kDim,
            .scale = 0.04f,
            .sinks = of_sinks,
            .q = of_q,
            .keys = of_keys,
            .out = to};
  }

  const std::vector<uint8_t> window_rows, entry_rows;
  const std::vector<float> q, sinks;
  std::vector<int32_t> picks;
  Device<uint8_t> window_, entries_;
  Device<uint8_t*> window_pages_, entry_pages_;
  Device<const uint8_t*> lists_;
  Device<kernels::LatentSegment> segment_;
  Device<int32_t> picks_, n_picks_;
  Device<KeyRange> windows_;
  Device<LatentKeys> keys_;
  Device<float> q_, sinks_, out_;
};

KernelCase NameLatentKeys(bool tiny) {
  const auto c = std::make_shared<const LatentCase>(tiny);
  return {.shape = absl::StrFormat("%d rows, %d keys", c->rows, c->keys()),
          .floor = {.bytes = 8.0 * static_cast<double>(c->rows * c->keys())},
          .launch = [=] { return c->Name(); },
          .fault = [=] { return c->NameFault(); }};
}

KernelCase LatentAttention(bool tiny) {
  const auto c = std::make_shared<const LatentCase>(tiny);
  const auto rows = static_cast<double>(c->rows);
  const auto row_values = static_cast<double>(c->heads * LatentCase::kDim);
  const auto key_bytes =
      static_cast<double>(c->n_window * LatentCase::kWindowBytes +
                          c->n_picks * LatentCase::kEntryBytes);
  return {
      .shape = absl::StrFormat("%d rows, %d keys, %d heads of %d", c->rows,
                               c->keys(), c->heads, LatentCase::kDim),
      .floor = {.bytes = rows * (key_bytes + 8 * row_values),
                .operations =
                    4 * rows * static_cast<double>(c->keys()) * row_values},
      .launch = [=, named =
                        c->Name()] { return named != 0 ? named : c->Attend(); },
      .fault = [=] { return c->AttendFault(); }};
}

}  // namespace

std::vector<NamedCase> IndexerCases() {
  return {
      {"IndexScore", IndexScore},         {"CandidateBlocks", CandidateBlocks},
      {"KeepBlocks", KeepBlocks},         {"TopK", TopK},
      {"NameLatentKeys", NameLatentKeys}, {"LatentAttention", LatentAttention}};
}

}  // namespace torpor::gpu_check
