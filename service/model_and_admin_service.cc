// SPDX-License-Identifier: Apache-2.0

#include "service/model_and_admin_service.h"

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/families.h"
#include "service/convert.h"
#include "service/version.h"
#include "store/record.h"

namespace torpor::service {
namespace {

// How often a long walk says where it is.
constexpr auto kProgressEvery = std::chrono::milliseconds(200);

class ProgressTimer {
 public:
  bool Due() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < kProgressEvery) return false;
    last_ = now;
    return true;
  }

 private:
  std::chrono::steady_clock::time_point last_ =
      std::chrono::steady_clock::now();
};

// A relative one would mean another directory with each start of the daemon.
absl::Status CheckAbsolute(std::string_view field, const std::string& path) {
  if (path.starts_with('/')) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: got '%s', wanted an absolute path on the daemon's host",
      std::string(field), path));
}

absl::Status FillPlan(Backend& backend, const v1::PlanRequest& request,
                      v1::PlanResponse* response) {
  TORPOR_ASSIGN_OR_RETURN(const replay::ReplayMode mode,
                          FromProto(request.mode()));
  if (request.resume_at() > request.n_tokens()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("resume_at: got %d, wanted at most n_tokens, %d",
                        request.resume_at(), request.n_tokens()));
  }
  replay::ModelLayout layout;
  if (!request.model().empty()) {
    TORPOR_ASSIGN_OR_RETURN(const auto model,
                            backend.models().Get(request.model()));
    layout = model->layout;
  } else {
    TORPOR_ASSIGN_OR_RETURN(
        layout,
        replay::LayoutFromConfig(
            request.config_json(),
            {request.kv_dtype().empty() ? "native" : request.kv_dtype()}));
  }
  const replay::LayoutFigures figures =
      replay::FiguresOf(layout, request.n_tokens());
  response->set_family(layout.family);
  response->set_compact_bytes_per_token(figures.compact_bytes_per_token);
  response->set_all_window_bytes_per_token(figures.all_window_bytes_per_token);
  response->set_ratio(figures.ratio);
  response->set_snapshot_bytes(figures.snapshot_bytes);
  response->set_bounded_tokens(figures.bounded_tokens);
  response->set_exact_tokens(figures.exact_tokens);
  response->set_exact_token_layers(figures.exact_token_layers);
  if (request.resume_at() == 0) return absl::OkStatus();
  replay::PlanRequest asked{.resume_at = request.resume_at(),
                            .mode = mode,
                            .replay_tokens = request.replay_tokens(),
                            .want_logits = request.want_logits()};
  if (mode == replay::ReplayMode::kAuto) {
    TORPOR_ASSIGN_OR_RETURN(asked.mode, replay::ChooseMode(layout, asked, {}));
  }
  TORPOR_ASSIGN_OR_RETURN(const replay::ReplayPlan plan,
                          replay::PlanReplay(layout, asked));
  *response->mutable_plan() = ToProto(plan);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* ModelServiceImpl::Register(
    grpc::CallbackServerContext* context, const v1::RegisterRequest* request,
    v1::ModelState* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.ServeOperator("Register", call, [&]() -> absl::Status {
      if (!request->model_dir().empty()) {
        TORPOR_RETURN_IF_ERROR(
            CheckAbsolute("model_dir", request->model_dir()));
      }
      TORPOR_ASSIGN_OR_RETURN(const auto model,
                              backend_.models().Register(*request));
      *response = model->ToProto();
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* ModelServiceImpl::Describe(
    grpc::CallbackServerContext* context,
    const v1::DescribeModelRequest* request, v1::ModelState* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("DescribeModel", call, [&](uint32_t) -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(const auto model,
                              backend_.models().Get(request->name()));
      *response = model->ToProto();
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* ModelServiceImpl::List(
    grpc::CallbackServerContext* context, const v1::ListModelsRequest*,
    v1::ListModelsResponse* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("ListModels", call, [&](uint32_t) {
      for (const auto& model : backend_.models().List()) {
        *response->add_models() = model->ToProto();
      }
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* ModelServiceImpl::Plan(
    grpc::CallbackServerContext* context, const v1::PlanRequest* request,
    v1::PlanResponse* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("Plan", call, [&](uint32_t) {
      return FillPlan(backend_, *request, response);
    });
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::ServerInfo(
    grpc::CallbackServerContext* context, const v1::ServerInfoRequest*,
    v1::ServerInfoResponse* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve("ServerInfo", call, [&](uint32_t) {
      response->set_version(kVersion);
      response->set_format_version(store::kRecordFormatVersion);
      response->set_data_dir(facts_.data_dir);
      response->set_started_at(facts_.started_at);
      response->set_numerics_id(facts_.numerics);
      response->set_draining(backend_.draining());
      return absl::OkStatus();
    });
  });
}

grpc::ServerUnaryReactor* AdminServiceImpl::Stats(
    grpc::CallbackServerContext* context, const v1::StatsRequest*,
    v1::StatsResponse* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.ServeOperator("Stats", call, [&] {
      const store::StoreStats stats = backend_.store().Stats();
      response->set_sessions(stats.sessions);
      response->set_records(stats.records);
      response->set_live_bytes(stats.live_bytes);
      response->set_reserved_bytes(stats.reserved_bytes);
      response->set_max_bytes(stats.max_bytes);
      response->set_file_bytes(stats.file_bytes);
      response->set_disk_free_bytes(stats.disk_free_bytes);
      response->set_staged_records(stats.staged_records);
      response->set_trashed_records(stats.trashed_records);
      response->set_quarantined_records(stats.quarantined_records);
      response->set_open_tickets(stats.open_tickets);
      response->set_open_leases(stats.open_leases);
      response->set_commits(stats.commits);
      return absl::OkStatus();
    });
  });
}

grpc::ServerWriteReactor<v1::VerifyProgress>* AdminServiceImpl::Verify(
    grpc::CallbackServerContext* context, const v1::VerifyRequest* request) {
  return RunWriter<v1::VerifyProgress>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.ServeOperator("Verify", call, [&]() -> absl::Status {
          const auto message = [](const store::VerifyReport& report) {
            v1::VerifyProgress progress;
            progress.set_records_checked(report.records_checked);
            progress.set_records_total(report.records_total);
            progress.set_sessions_checked(report.sessions_checked);
            return progress;
          };
          ProgressTimer timer;
          TORPOR_ASSIGN_OR_RETURN(
              const store::VerifyReport report,
              backend_.store().Verify(
                  request->deep(), [&](const store::VerifyReport& so_far) {
                    if (timer.Due() && !write(message(so_far))) return false;
                    return !call.cancelled();
                  }));
          v1::VerifyProgress last = message(report);
          last.mutable_problems()->Assign(report.problems.begin(),
                                          report.problems.end());
          last.set_done(true);
          write(last);
          return absl::OkStatus();
        });
      });
}

grpc::ServerWriteReactor<v1::BackupProgress>* AdminServiceImpl::Backup(
    grpc::CallbackServerContext* context, const v1::BackupRequest* request) {
  return RunWriter<v1::BackupProgress>(
      context, &backend_.workers(), [=, this](Call& call, auto write) {
        return backend_.ServeOperator("Backup", call, [&]() -> absl::Status {
          TORPOR_RETURN_IF_ERROR(
              CheckAbsolute("directory", request->directory()));
          const auto message = [](const store::BackupReport& report) {
            v1::BackupProgress progress;
            progress.set_sessions_copied(report.sessions_copied);
            progress.set_records_copied(report.records_copied);
            progress.set_bytes_copied(report.bytes_copied);
            return progress;
          };
          ProgressTimer timer;
          TORPOR_ASSIGN_OR_RETURN(
              const store::BackupReport report,
              backend_.store().Backup(
                  request->directory(), [&](const store::BackupReport& so_far) {
                    if (timer.Due() && !write(message(so_far))) return false;
                    return !call.cancelled();
                  }));
          v1::BackupProgress last = message(report);
          last.mutable_problems()->Assign(report.problems.begin(),
                                          report.problems.end());
          last.set_done(true);
          write(last);
          return absl::OkStatus();
        });
      });
}

}  // namespace torpor::service
