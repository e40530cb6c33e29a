// SPDX-License-Identifier: Apache-2.0

#include "bench/plane_limits.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "bench/daemon.h"
#include "bench/raw_io.h"
#include "bench/synthetic.h"
#include "service/convert.h"

namespace torpor::bench {
namespace {

using service::RowPlane;

constexpr char kModel[] = "plane";
constexpr uint64_t kMiB = uint64_t{1} << 20;
// design.md, "Numbers that must hold".
constexpr double kSuspendMust = 0.45;
constexpr double kSharedMust = 0.6;
constexpr double kGrpcMust = 0.35;
constexpr double kMemoryMust = 256.0 * kMiB;

// A session whose rows stand in memory, slot by slot.
class HeldSession {
 public:
  HeldSession(const replay::ModelLayout& layout, uint64_t n_tokens,
              uint64_t seed)
      : layout_(layout), n_tokens_(n_tokens) {
    rows_.resize(layout.slots.size());
    for (const uint32_t slot : layout.CompactSlots()) {
      rows_[slot].resize(n_tokens / layout.slots[slot].tokens_per_row *
                         layout.slots[slot].row_bytes);
      FillRows(seed + slot, layout.slots[slot].row_bytes, 0, rows_[slot]);
      bytes_ += rows_[slot].size();
    }
    ids_.assign(n_tokens, 7);
  }

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t n_tokens() const { return n_tokens_; }
  // All rows as one run of bytes.
  [[nodiscard]] std::vector<uint8_t> Joined() const {
    std::vector<uint8_t> all;
    all.reserve(bytes_);
    for (const auto& rows : rows_) {
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }

  absl::Status Suspend(service::Client* client, const v1::ModelState& model,
                       const std::string& id) const {
    service::SuspendCall call;
    v1::BeginSuspendHeader& header = call.header;
    header.set_session(id);
    header.set_operation_id(service::NewOperationId());
    header.set_model(model.name());
    *header.mutable_fingerprint() = model.fingerprint();
    header.set_numerics_id("bench");
    header.set_kv_len(n_tokens_);
    call.ids = ids_;
    call.block_size = model.block_size();
    for (const uint32_t index : layout_.CompactSlots()) {
      const replay::Slot& slot = layout_.slots[index];
      call.slots.push_back({index, slot.row_bytes, slot.tokens_per_row, 0,
                            n_tokens_ / slot.tokens_per_row});
    }
    call.rows = [this](uint32_t slot, uint64_t begin, uint64_t,
                       std::span<uint8_t> out) {
      std::memcpy(out.data(),
                  &rows_[slot][begin * layout_.slots[slot].row_bytes],
                  out.size());
      return absl::OkStatus();
    };
    return client->Suspend(call).status();
  }

  // Reads every row where the plane has put it, verified as every client does;
  // `check` compares it besides. Returns the seconds.
  absl::StatusOr<double> Resume(service::Client* client,
                                const v1::ModelState& model,
                                const std::string& id, bool check) const {
    service::ResumeCall call;
    call.header.set_session(id);
    call.header.set_model(model.name());
    *call.header.mutable_fingerprint() = model.fingerprint();
    call.header.set_mode(v1::REPLAY_MODE_EXACT);
    call.header.set_engine_replays(true);
    uint64_t received = 0;
    call.compact = [&](uint32_t slot, uint64_t begin,
                       std::span<const uint8_t> bytes) -> absl::Status {
      received += bytes.size();
      if (!check) return absl::OkStatus();
      const uint64_t at = begin * layout_.slots[slot].row_bytes;
      if (at + bytes.size() <= rows_[slot].size() &&
          std::memcmp(&rows_[slot][at], bytes.data(), bytes.size()) == 0) {
        return absl::OkStatus();
      }
      return absl::DataLossError(absl::StrFormat(
          "slot %d: rows from %d on came back different", slot, begin));
    };
    absl::Status status;
    const double seconds =
        SecondsOf([&] { status = client->Resume(call).status(); });
    TORPOR_RETURN_IF_ERROR(status);
    if (received == bytes_) return seconds;
    return absl::DataLossError(absl::StrFormat(
        "%s: got %d bytes of rows, wanted %d", id, received, bytes_));
  }

 private:
  const replay::ModelLayout& layout_;
  const uint64_t n_tokens_;
  std::vector<std::vector<uint8_t>> rows_;
  std::vector<uint32_t> ids_;
  uint64_t bytes_ = 0;
};

class Planes {
 public:
  Planes(const PlaneOptions& options, const Common& common)
      : options_(options), common_(common), layout_(PooledLayout()) {}

  absl::StatusOr<std::vector<LimitRow>> Run() {
    TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common_.dir));
    directory_ = scratch.path();
    TORPOR_ASSIGN_OR_RETURN(Daemon daemon,
                            Daemon::Start({common_.bin_dir, directory_, {}}));
    daemon_ = std::make_unique<Daemon>(std::move(daemon));
    TORPOR_ASSIGN_OR_RETURN(grpc_, daemon_->Connect(RowPlane::kGrpc));
    TORPOR_ASSIGN_OR_RETURN(shared_, daemon_->Connect(RowPlane::kSharedMemory));
    v1::RegisterRequest request;
    *request.mutable_layout() = service::ToProto(layout_);
    request.set_name(kModel);
    request.mutable_fingerprint()->set_weights("bench");
    TORPOR_ASSIGN_OR_RETURN(
        model_, grpc_->Unary(grpc_->models(), &v1::ModelService::Stub::Register,
                             request));
    TORPOR_RETURN_IF_ERROR(Suspends());
    TORPOR_RETURN_IF_ERROR(Reads());
    TORPOR_RETURN_IF_ERROR(Memory());
    grpc_.reset();
    shared_.reset();
    TORPOR_RETURN_IF_ERROR(daemon_->Stop());
    return std::move(rows_);
  }

 private:
  // Named rows for both planes: (name, client).
  std::vector<std::pair<const char*, service::Client*>> Both() {
    return {{"gRPC", grpc_.get()}, {"shared memory", shared_.get()}};
  }

  absl::Status Suspends() {
    constexpr int kCommits = 8;
    // 1.5 MiB.
    const HeldSession session(layout_, 1'792, common_.seed);
    const std::vector<uint8_t> raw = session.Joined();
    std::map<std::string, std::vector<double>> seconds;
    for (int round = 0; round < options_.rounds; ++round) {
      absl::Status status;
      for (const auto& [plane, client] : Both()) {
        seconds[plane].push_back(SecondsOf([&] {
          for (int i = 0; i < kCommits; ++i) {
            status.Update(session.Suspend(
                client, model_, absl::StrFormat("%s-%d-%d", plane, round, i)));
          }
        }));
        TORPOR_RETURN_IF_ERROR(status);
        TORPOR_RETURN_IF_ERROR(
            session
                .Resume(client, model_,
                        absl::StrFormat("%s-%d-0", plane, round),
                        /*check=*/true)
                .status());
      }
      seconds["disk"].push_back(SecondsOf([&] {
        for (int i = 0; i < kCommits; ++i) {
          status.Update(RawWrite(
              absl::StrFormat("%s/raw-%d-%d", directory_, round, i), raw));
        }
      }));
      TORPOR_RETURN_IF_ERROR(status);
    }
    const double mb = static_cast<double>(raw.size()) * kCommits / 1e6;
    for (const auto& [plane, client] : Both()) {
      rows_.push_back(
          {absl::StrFormat("durable suspends of 1.5 MiB over %s", plane),
           mb / Median(seconds[plane]), mb / Median(seconds["disk"]), "MB/s",
           "write + fdatasync of as many bytes",
           // Stated of gRPC alone.
           client == grpc_.get() ? kSuspendMust : 0, /*at_least=*/true});
    }
    common_.Say("suspends timed");
    return absl::OkStatus();
  }

  absl::Status Reads() {
    const HeldSession session(layout_, options_.n_tokens, common_.seed + 1);
    TORPOR_RETURN_IF_ERROR(session.Suspend(grpc_.get(), model_, "read"));
    const std::vector<uint8_t> from = session.Joined();
    std::vector<uint8_t> to(from.size(), 1);
    std::map<std::string, std::vector<double>> seconds;
    for (const auto& [plane, client] : Both()) {
      TORPOR_RETURN_IF_ERROR(
          session.Resume(client, model_, "read", /*check=*/true).status());
    }
    for (int round = 0; round < options_.rounds; ++round) {
      for (const auto& [plane, client] : Both()) {
        TORPOR_ASSIGN_OR_RETURN(
            const double took,
            session.Resume(client, model_, "read", /*check=*/false));
        seconds[plane].push_back(took);
      }
      seconds["memcpy"].push_back(
          SecondsOf([&] { std::memcpy(to.data(), from.data(), from.size()); }));
      absl::Status status;
      seconds["socket"].push_back(
          SecondsOf([&] { status = RawSocketCopy(from, to); }));
      TORPOR_RETURN_IF_ERROR(status);
    }
    const double gb = static_cast<double>(from.size()) / 1e9;
    rows_.push_back(
        {absl::StrFormat("hot read of %.0f MB into shared memory", 1e3 * gb),
         gb / Median(seconds["shared memory"]), gb / Median(seconds["memcpy"]),
         "GB/s", "memcpy", kSharedMust, /*at_least=*/true});
    rows_.push_back({absl::StrFormat("hot read of %.0f MB over gRPC", 1e3 * gb),
                     gb / Median(seconds["gRPC"]),
                     gb / Median(seconds["socket"]), "GB/s",
                     "unix-socket copy in 1 MiB writes", kGrpcMust,
                     /*at_least=*/true});
    common_.Say("reads timed");
    return absl::OkStatus();
  }

  absl::Status Memory() {
    const uint64_t idle = UsageOf(daemon_->pid()).private_bytes;
    const HeldSession session(layout_, options_.memory_tokens,
                              common_.seed + 2);
    MemoryWatch watch(daemon_->pid());
    for (const auto& [plane, client] : Both()) {
      const std::string id = absl::StrFormat("memory-%s", plane);
      TORPOR_RETURN_IF_ERROR(session.Suspend(client, model_, id));
      TORPOR_RETURN_IF_ERROR(
          session.Resume(client, model_, id, /*check=*/true).status());
    }
    const uint64_t most = watch.Stop();
    rows_.push_back(
        {absl::StrFormat("daemon's memory over idle, %.0f MB both ways",
                         static_cast<double>(session.bytes()) / 1e6),
         static_cast<double>(most - std::min(most, idle)), kMemoryMust, "B",
         "256 MiB", 1, /*at_least=*/false});
    return absl::OkStatus();
  }

  const PlaneOptions& options_;
  const Common& common_;
  const replay::ModelLayout layout_;
  std::string directory_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<service::Client> grpc_;
  std::unique_ptr<service::Client> shared_;
  v1::ModelState model_;
  std::vector<LimitRow> rows_;
};

}  // namespace

absl::StatusOr<std::vector<LimitRow>> MeasurePlanes(const PlaneOptions& options,
                                                    const Common& common) {
  return Planes(options, common).Run();
}

RunBenchmark AddPlaneCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<PlaneOptions>();
  app->add_option("--rounds", options->rounds, "Interleaved rounds")
      ->check(CLI::Range(1, 1001))
      ->capture_default_str();
  app->add_option("--tokens", options->n_tokens, "Of the session that is read")
      ->check(CLI::Range(1'024, 10'000'000))
      ->capture_default_str();
  app->add_option("--memory-tokens", options->memory_tokens,
                  "Of the session whose transfer's memory is watched")
      ->check(CLI::Range(1'024, 10'000'000))
      ->capture_default_str();
  return [options, common]() -> absl::StatusOr<Result> {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<LimitRow> rows,
                            MeasurePlanes(*options, *common));
    Result result;
    result.json["rows"] = LimitsJson(rows);
    result.text = LimitTable(rows);
    result.page = SvgPage("Rows between client and daemon");
    result.page.Add(LimitsPlot(rows));
    result.holds = AllHold(rows);
    return result;
  };
}

}  // namespace torpor::bench
