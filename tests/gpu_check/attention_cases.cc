// SPDX-License-Identifier: Apache-2.0
//
// Attention over bf16 pages in Gemma 3 270M's shape: a replay's rows in their
// window, and single rows of many sessions over all of their tokens.

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/attention_cuda.h"
#include "kernels/kv_page_cuda.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

using kernels::AttentionSegment;
using kernels::Bf16;
using kernels::DType;
using kernels::KeyRange;
using kernels::KvShape;

struct Shape {
  int64_t n_sessions;
  // The last so many of `n_tokens`, each of which sees `window` keys.
  int64_t n_rows;
  int64_t n_tokens;
  int64_t window;
  int64_t head_dim;
};

constexpr int64_t kQueryHeads = 4;
// Of the header: query rows that share a tile's keys.
constexpr int64_t kTileRows = 32;

// All sessions have the same K and V, each in pages of its own.
class AttentionCase {
 public:
  explicit AttentionCase(const Shape& s)
      : shape_(s),
        kv_{DType::kBf16, 1, s.head_dim},
        n_pages_((s.n_tokens + kernels::kPageTokens - 1) /
                 kernels::kPageTokens),
        k_(kernels::ToBf16s(Normals(s.n_tokens * s.head_dim, 31))),
        v_(kernels::ToBf16s(Normals(s.n_tokens * s.head_dim, 32))),
        q_(Normals(s.n_sessions * s.n_rows * kQueryHeads * s.head_dim, 33)) {
    MakePages();
    MakeSegments();
    params_.n_rows = s.n_sessions * s.n_rows;
    params_.max_splits =
        (s.n_tokens - 1) / kernels::kSplitTokens -
        (s.n_tokens - s.n_rows + 1 - s.window) / kernels::kSplitTokens + 1;
    params_.attention = Params();
    device_q_ = OnDevice(q_);
    out_ = OnDevice<float>(static_cast<int64_t>(q_.size()));
    params_.attention.q = device_q_->data();
    params_.attention.out = out_->data();
    params_.attention.segments = segments_->data();
    params_.attention.n_segments = s.n_sessions;
    // What the backend gives it.
    params_.workspace_bytes = std::max(
        AttentionWorkspaceOf(params_).bytes_min,
        std::min(AttentionWorkspaceOf(params_).bytes_max, size_t{64} << 20));
    workspace_ =
        OnDevice<uint8_t>(static_cast<int64_t>(params_.workspace_bytes));
    params_.workspace = workspace_->data();
  }

  int Launch() const { return kernels::AttentionCuda(params_, nullptr); }

  // The first row of the first session, the last of the last.
  [[nodiscard]] std::string Fault() const {
    const std::vector<float> got = out_->Download();
    const int64_t row = kQueryHeads * shape_.head_dim;
    const int64_t last = params_.n_rows - 1;
    for (const int64_t at : {int64_t{0}, last}) {
      const auto part = [&](const std::vector<float>& of) {
        return std::vector<float>(of.begin() + at * row,
                                  of.begin() + (at + 1) * row);
      };
      const std::vector<float> wanted =
          Reference(part(q_), KeysOf(at == 0 ? 0 : shape_.n_rows - 1));
      // The numerators are rounded to bf16 before their products.
      const std::string fault = Differ(part(got), wanted, 8e-3);
      if (!fault.empty()) return absl::StrFormat("row %d: %s", at, fault);
    }
    return "";
  }

  [[nodiscard]] KernelCase Case(
      const std::shared_ptr<AttentionCase>& self) const {
    const auto rows = static_cast<double>(params_.n_rows);
    const auto keys = static_cast<double>(shape_.window);
    const auto dim = static_cast<double>(shape_.head_dim);
    const double tiles =
        static_cast<double>(shape_.n_sessions) *
        std::ceil(static_cast<double>(shape_.n_rows) / kTileRows);
    return {.shape = absl::StrFormat(
                "%d x %d rows, %d keys, %d heads of %d", shape_.n_sessions,
                shape_.n_rows, shape_.window, kQueryHeads, shape_.head_dim),
            .floor = {.bytes = tiles * keys * dim * 4 +
                               rows * kQueryHeads * dim * 8 *
                                   static_cast<double>(params_.max_splits),
                      .operations = 4 * rows * keys * dim * kQueryHeads},
            .launch = [self] { return self->Launch(); },
            .fault = [self] { return self->Fault(); }};
  }

 private:
  [[nodiscard]] KeyRange KeysOf(int64_t row) const {
    const int64_t end = shape_.n_tokens - shape_.n_rows + row + 1;
    return {end - shape_.window, end};
  }
  [[nodiscard]] kernels::AttentionParams Params() const {
    return {.shape = kv_,
            .n_heads = kQueryHeads,
            .scale = 1.0f / std::sqrt(static_cast<float>(kv_.head_dim))};
  }

  void MakePages() {
    std::vector<Bf16> pages(static_cast<size_t>(n_pages_) * kv_.page_bytes() /
                            sizeof(Bf16));
    const auto page_elements =
        static_cast<int64_t>(kv_.page_bytes() / sizeof(Bf16));
    for (int64_t pos = 0; pos < shape_.n_tokens; ++pos) {
      for (const bool is_v : {false, true}) {
        std::copy_n(
            (is_v ? v_ : k_).begin() + pos * kv_.head_dim, kv_.head_dim,
            pages.begin() + pos / kernels::kPageTokens * page_elements +
                DeviceKvIndex(kv_, is_v, 0, pos % kernels::kPageTokens));
      }
    }
    pages_ =
        OnDevice<Bf16>(shape_.n_sessions * static_cast<int64_t>(pages.size()));
    std::vector<const uint8_t*> table;
    for (int64_t s = 0; s < shape_.n_sessions; ++s) {
      pages_->Upload(pages, static_cast<size_t>(s) * pages.size());
      for (int64_t i = 0; i < n_pages_; ++i) {
        table.push_back(reinterpret_cast<const uint8_t*>(
            pages_->data() + (s * n_pages_ + i) * page_elements));
      }
    }
    table_ = OnDevice(table);
  }
  void MakeSegments() {
    std::vector<KeyRange> keys;
    for (int64_t row = 0; row < shape_.n_rows; ++row) {
      keys.push_back(KeysOf(row));
    }
    keys_ = OnDevice(keys);
    std::vector<AttentionSegment> segments;
    for (int64_t s = 0; s < shape_.n_sessions; ++s) {
      segments.push_back({s * shape_.n_rows,
                          shape_.n_rows,
                          keys_->data(),
                          {table_->data() + s * n_pages_, n_pages_}});
    }
    segments_ = OnDevice(segments);
  }

  [[nodiscard]] std::vector<float> Reference(const std::vector<float>& q,
                                             const KeyRange& keys) const {
    std::vector<std::vector<uint8_t>> pages;
    std::vector<const uint8_t*> table;
    for (int64_t i = 0; i < n_pages_; ++i) {
      pages.emplace_back(kv_.page_bytes());
      table.push_back(pages.back().data());
    }
    for (int64_t pos = 0; pos < shape_.n_tokens; ++pos) {
      uint8_t* page =
          pages[static_cast<size_t>(pos / kernels::kPageTokens)].data();
      const int64_t token = pos % kernels::kPageTokens;
      PutKRow(kv_, page, token, k_.data() + pos * kv_.head_dim);
      PutVRow(kv_, page, token, v_.data() + pos * kv_.head_dim);
    }
    const AttentionSegment segment{0, 1, &keys, {table.data(), n_pages_}};
    std::vector<float> out(q.size());
    kernels::AttentionParams p = Params();
    p.q = q.data();
    p.out = out.data();
    p.segments = &segment;
    p.n_segments = 1;
    kernels::AttentionRef(p);
    return out;
  }

  const Shape shape_;
  const KvShape kv_;
  const int64_t n_pages_;
  const std::vector<Bf16> k_;
  const std::vector<Bf16> v_;
  const std::vector<float> q_;
  Device<Bf16> pages_;
  Device<const uint8_t*> table_;
  Device<KeyRange> keys_;
  Device<AttentionSegment> segments_;
  Device<float> device_q_;
  Device<float> out_;
  Device<uint8_t> workspace_;
  kernels::AttentionCudaParams params_;
};

KernelCase Attention(const Shape& shape) {
  const auto c = std::make_shared<AttentionCase>(shape);
  return c->Case(c);
}

}  // namespace

std::vector<NamedCase> AttentionCases() {
  return {{"Attention",
           [](bool tiny) {
             return Attention(tiny ? Shape{1, 5, 70, 40, 16}
                                   : Shape{8, 512, 4096, 512, 256});
           }},
          {"Attention",
           [](bool tiny) {
             return Attention(tiny ? Shape{2, 1, 70, 70, 16}
                                   : Shape{64, 1, 8192, 8192, 256});
           }},
          {"Attention", [](bool tiny) {
             return Attention(tiny ? Shape{1, 2, 70, 68, 16}
                                   : Shape{1, 512, 8192, 7680, 256});
           }}};
}

}  // namespace torpor::gpu_check
