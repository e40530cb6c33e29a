// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's hyper-connections, Engram gates and records.

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/engram_gate_cuda.h"
#include "kernels/hyper_connection_cuda.h"
#include "kernels/pool_members_cuda.h"
#include "kernels/record_rows_cuda.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

// ---- hyper-connections -----------------------------------------------------

constexpr int64_t kStreams = 4;

struct HyperShape {
  int64_t rows, dim;
};
HyperShape HyperShapeOf(bool tiny) {
  return tiny ? HyperShape{3, 64} : HyperShape{2048, 4096};
}
std::string Text(const HyperShape& s) {
  return absl::StrFormat("%dx%dx%d", s.rows, kStreams, s.dim);
}

KernelCase HyperMix(bool tiny) {
  const HyperShape s = HyperShapeOf(tiny);
  constexpr int64_t kWidth = kStreams * (2 + kStreams);
  constexpr int64_t kMixes = kStreams * kStreams;
  const auto x = Normals(s.rows * kStreams * s.dim, 51);
  const auto projection = Normals(s.rows * kWidth, 52);
  const auto base = Normals(kWidth, 53);
  const auto scale = Normals(3, 54);
  const auto device_x = OnDevice(x);
  const auto device_projection = OnDevice(projection);
  const auto device_base = OnDevice(base);
  const auto device_scale = OnDevice(scale);
  const auto pre = OnDevice<float>(s.rows * kStreams);
  const auto post = OnDevice<float>(s.rows * kStreams);
  const auto comb = OnDevice<float>(s.rows * kMixes);
  const kernels::HyperMixParams shape{.n_rows = s.rows,
                                      .n_streams = kStreams,
                                      .dim = s.dim,
                                      .norm_eps = 1e-6f,
                                      .eps = 1e-6f,
                                      .n_iterations = 20};
  return {.shape = Text(s),
          .floor = {.bytes = 4.0 * static_cast<double>(
                                       s.rows * (kStreams * s.dim + kWidth +
                                                 2 * kStreams + kMixes))},
          .launch =
              [=] {
                auto p = shape;
                p.x = device_x->data();
                p.projection = device_projection->data();
                p.base = device_base->data();
                p.scale = device_scale->data();
                p.pre = pre->data();
                p.post = post->data();
                p.comb = comb->data();
                return kernels::HyperMixCuda(p, nullptr);
              },
          .fault = [=]() -> std::string {
            auto wanted_pre = Zeros(s.rows * kStreams);
            auto wanted_post = Zeros(s.rows * kStreams);
            auto wanted_comb = Zeros(s.rows * kMixes);
            auto p = shape;
            p.x = x.data();
            p.projection = projection.data();
            p.base = base.data();
            p.scale = scale.data();
            p.pre = wanted_pre.data();
            p.post = wanted_post.data();
            p.comb = wanted_comb.data();
            kernels::HyperMixRef(p);
            for (const auto& [got, wanted] : {std::pair(&pre, &wanted_pre),
                                              {&post, &wanted_post},
                                              {&comb, &wanted_comb}}) {
              const auto fault = Differ((*got)->Download(), *wanted, 5e-6);
              if (!fault.empty()) return fault;
            }
            return "";
          }};
}

KernelCase HyperCollapse(bool tiny) {
  const HyperShape s = HyperShapeOf(tiny);
  const auto x = Normals(s.rows * kStreams * s.dim, 55);
  const auto mix = Normals(s.rows * kStreams, 56);
  const auto device_x = OnDevice(x);
  const auto device_mix = OnDevice(mix);
  const auto out = OnDevice<float>(s.rows * s.dim);
  return {.shape = Text(s),
          .floor = {.bytes = 4.0 * static_cast<double>(s.rows * s.dim *
                                                       (kStreams + 1))},
          .launch =
              [=] {
                return kernels::HyperCollapseCuda(
                    {device_x->data(), s.rows, kStreams, s.dim,
                     device_mix->data(), out->data()},
                    nullptr);
              },
          .fault =
              [=] {
                auto wanted = Zeros(s.rows * s.dim);
                kernels::HyperCollapseRef({x.data(), s.rows, kStreams, s.dim,
                                           mix.data(), wanted.data()});
                return Differ(out->Download(), wanted, 5e-6);
              }};
}

KernelCase HyperExpand(bool tiny) {
  const HyperShape s = HyperShapeOf(tiny);
  const auto x = Normals(s.rows * kStreams * s.dim, 57);
  const auto y = Normals(s.rows * s.dim, 58);
  const auto post = Normals(s.rows * kStreams, 59);
  const auto comb = Normals(s.rows * kStreams * kStreams, 60);
  const auto device_x = OnDevice(x);
  const auto device_y = OnDevice(y);
  const auto device_post = OnDevice(post);
  const auto device_comb = OnDevice(comb);
  return {
      .shape = Text(s),
      .floor = {.bytes = 4.0 * static_cast<double>(s.rows * s.dim *
                                                   (2 * kStreams + 1))},
      .launch =
          [=] {
            return kernels::HyperExpandCuda(
                {device_x->data(), s.rows, kStreams, s.dim, device_y->data(),
                 device_post->data(), device_comb->data()},
                nullptr);
          },
      .fault =
          [=] {
            auto wanted = x;
            kernels::HyperExpandRef({wanted.data(), s.rows, kStreams, s.dim,
                                     y.data(), post.data(), comb.data()});
            return Differ(device_x->Download(), wanted, 5e-6);
          }};
}

KernelCase EngramGate(bool tiny) {
  const HyperShape s = HyperShapeOf(tiny);
  const auto x = Normals(s.rows * kStreams * s.dim, 65);
  const auto kv = Normals(s.rows * (kStreams + 1) * s.dim, 66);
  const auto qk = Normals(kStreams * s.dim, 67);
  const auto device_x = OnDevice(x);
  const auto device_kv = OnDevice(kv);
  const auto device_qk = OnDevice(qk);
  return {.shape = Text(s),
          .floor = {.bytes = 4.0 * static_cast<double>(s.rows * s.dim *
                                                       (3 * kStreams + 1))},
          .launch =
              [=] {
                return kernels::EngramGateCuda(
                    {device_x->data(), s.rows, kStreams, s.dim,
                     device_kv->data(), device_qk->data(), 1e-6f},
                    nullptr);
              },
          .fault =
              [=] {
                auto wanted = x;
                kernels::EngramGateRef({wanted.data(), s.rows, kStreams, s.dim,
                                        kv.data(), qk.data(), 1e-6f});
                return Differ(device_x->Download(), wanted, 1e-5);
              }};
}

// ---- records ---------------------------------------------------------------

std::vector<uint8_t> Noise(int64_t n) {
  std::mt19937_64 engine(91);
  std::vector<uint8_t> bytes(static_cast<size_t>(n));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(engine());
  return bytes;
}

// Rows as long as main records.
class RecordCase {
 public:
  explicit RecordCase(bool tiny)
      : n_rows(tiny ? 70 : 65'536),
        records(Noise(n_rows * kRowBytes)),
        n_pages_((n_rows + kPageRows - 1) / kPageRows),
        in_(OnDevice(records)),
        out_(OnDevice<uint8_t>(n_rows * kRowBytes)),
        memory_(OnDevice<uint8_t>(n_pages_ * kPageRows * kRowBytes)),
        pages_(OnDevice(PagesOf<uint8_t>(memory_->data(), n_pages_,
                                         kPageRows * kRowBytes))) {}
  int Import() const {
    return kernels::ImportRecordsCuda(Range(), in_->data(), nullptr);
  }
  int Export() const {
    return kernels::ExportRecordsCuda(Range(), out_->data(), nullptr);
  }
  [[nodiscard]] std::string Fault() const {
    return Differ(out_->Download(), records);
  }
  [[nodiscard]] Floor floor() const {
    return {.bytes = 2.0 * static_cast<double>(n_rows * kRowBytes)};
  }
  [[nodiscard]] std::string shape() const {
    return absl::StrFormat("%d rows of %d B", n_rows, kRowBytes);
  }

 private:
  static constexpr int64_t kRowBytes =
      kernels::RowBytes(kernels::RowFormat::kMainFp4, 512, 0);
  static constexpr int64_t kPageRows = 64;
  [[nodiscard]] kernels::RecordRange Range() const {
    return {{pages_->data(), n_pages_, kPageRows, 0, kRowBytes}, 0, n_rows};
  }

  const int64_t n_rows;
  const std::vector<uint8_t> records;
  const int64_t n_pages_;
  const Device<uint8_t> in_, out_, memory_;
  const Device<uint8_t*> pages_;
};

KernelCase ImportRecords(bool tiny) {
  const auto c = std::make_shared<const RecordCase>(tiny);
  return {
      .shape = c->shape(),
      .floor = c->floor(),
      .launch = [=] { return c->Import(); },
      .fault = [=] { return c->Export() == 0 ? c->Fault() : "no way back"; }};
}
KernelCase ExportRecords(bool tiny) {
  const auto c = std::make_shared<const RecordCase>(tiny);
  return {.shape = c->shape(),
          .floor = c->floor(),
          .launch =
              [=, imported = c->Import()] {
                return imported != 0 ? imported : c->Export();
              },
          .fault = [=] { return c->Fault(); }};
}

KernelCase PoolMembers(bool tiny) {
  constexpr int64_t kMembers = 4;
  const int64_t groups = tiny ? 3 : 4096;
  const int64_t dim = tiny ? 12 : 512;
  const auto members = Normals(groups * kMembers * 2 * dim, 92);
  const auto pointers = [=](const float* base) {
    std::vector<const uint8_t*> out;
    for (int64_t m = 0; m < groups * kMembers; ++m) {
      out.push_back(reinterpret_cast<const uint8_t*>(base + m * 2 * dim));
    }
    return out;
  };
  const auto device_members = OnDevice(members);
  const auto lists = OnDevice(pointers(device_members->data()));
  const auto out = OnDevice<float>(groups * dim);
  return {
      .shape = absl::StrFormat("%d groups of %d, %d", groups, kMembers, dim),
      .floor = {.bytes = 4.0 * static_cast<double>(groups * dim *
                                                   (2 * kMembers + 1))},
      .launch =
          [=, keep = device_members] {
            return kernels::PoolMembersCuda({.members = lists->data(),
                                             .n_groups = groups,
                                             .n_members = kMembers,
                                             .dim = dim,
                                             .out = out->data()},
                                            nullptr);
          },
      .fault =
          [=] {
            auto wanted = Zeros(groups * dim);
            const auto host = pointers(members.data());
            kernels::PoolMembersRef({.members = host.data(),
                                     .n_groups = groups,
                                     .n_members = kMembers,
                                     .dim = dim,
                                     .out = wanted.data()});
            return Differ(out->Download(), wanted, 1e-5);
          }};
}

}  // namespace

std::vector<NamedCase> SparseCases() {
  return {{"HyperMix", HyperMix},           {"HyperCollapse", HyperCollapse},
          {"HyperExpand", HyperExpand},     {"EngramGate", EngramGate},
          {"ImportRecords", ImportRecords}, {"ExportRecords", ExportRecords},
          {"PoolMembers", PoolMembers}};
}

}  // namespace torpor::gpu_check
