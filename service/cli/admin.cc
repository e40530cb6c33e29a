// SPDX-License-Identifier: Apache-2.0
//
// torpor stats | verify | backup | health | doctor.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "kernels/cuda_devices.h"
#include "kernels/isa.h"
#include "service/cli/context.h"
#include "service/closed_directory.h"

namespace torpor::service::cli {
namespace {

using Stub = v1::AdminService::Stub;

absl::Status Stats(Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  TORPOR_ASSIGN_OR_RETURN(
      const v1::StatsResponse s,
      client->Unary(client->admin(), &Stub::Stats, v1::StatsRequest()));
  if (context->json) {
    PrintJson(ToJson(s));
    return absl::OkStatus();
  }
  PrintTable({{"sessions", std::to_string(s.sessions())},
              {"records", std::to_string(s.records())},
              {"live", absl::StrFormat("%s of %s", Bytes(s.live_bytes()),
                                       Bytes(s.max_bytes()))},
              {"promised", Bytes(s.reserved_bytes())},
              {"file", Bytes(s.file_bytes())},
              {"disk free", Bytes(s.disk_free_bytes())},
              {"staged records", std::to_string(s.staged_records())},
              {"trashed records", std::to_string(s.trashed_records())},
              {"quarantined records", std::to_string(s.quarantined_records())},
              {"open tickets", std::to_string(s.open_tickets())},
              {"open leases", std::to_string(s.open_leases())},
              {"commits", std::to_string(s.commits())}});
  return absl::OkStatus();
}

absl::Status Verify(bool deep, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  const auto call = client->Context();
  v1::VerifyRequest request;
  request.set_deep(deep);
  const auto reader = client->admin().Verify(call.get(), request);
  v1::VerifyProgress progress;
  v1::VerifyProgress last;
  while (reader->Read(&progress)) {
    ShowProgress(absl::StrFormat("verified %d of %d records",
                                 progress.records_checked(),
                                 progress.records_total()));
    last = progress;
  }
  ShowProgress("");
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        status.error_message());
  }
  if (context->json) {
    PrintJson(ToJson(last));
  } else {
    for (const std::string& problem : last.problems()) {
      std::cout << problem << '\n';
    }
    std::cout << absl::StrFormat(
        "%d records and %d sessions checked, %d problems\n",
        last.records_checked(), last.sessions_checked(), last.problems_size());
  }
  return last.problems_size() == 0
             ? absl::OkStatus()
             : absl::DataLossError(absl::StrFormat("verify: %d problems",
                                                   last.problems_size()));
}

absl::Status Backup(const std::string& directory, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  const auto call = client->Context();
  v1::BackupRequest request;
  TORPOR_ASSIGN_OR_RETURN(*request.mutable_directory(),
                          AbsolutePath("directory", directory));
  const auto reader = client->admin().Backup(call.get(), request);
  v1::BackupProgress progress;
  v1::BackupProgress last;
  while (reader->Read(&progress)) {
    ShowProgress(absl::StrFormat("copied %d sessions, %s",
                                 progress.sessions_copied(),
                                 Bytes(progress.bytes_copied())));
    last = progress;
  }
  ShowProgress("");
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        status.error_message());
  }
  if (context->json) {
    PrintJson(ToJson(last));
  } else {
    for (const std::string& problem : last.problems()) {
      std::cout << problem << '\n';
    }
    std::cout << absl::StrFormat("copied %d sessions, %d records, %s\n",
                                 last.sessions_copied(), last.records_copied(),
                                 Bytes(last.bytes_copied()));
  }
  return last.problems_size() == 0
             ? absl::OkStatus()
             : absl::DataLossError(
                   absl::StrFormat("backup: %d sessions could not be copied",
                                   last.problems_size()));
}

// For probes: one call that needs no credential, and the exit code.
absl::Status Health(const std::string& service, Context* context) {
  TORPOR_ASSIGN_OR_RETURN(Client * client, context->Connect());
  TORPOR_RETURN_IF_ERROR(client->CheckHealth(service));
  if (context->json) {
    PrintJson({{"serving", true}});
  } else {
    std::cout << "serving\n";
  }
  return absl::OkStatus();
}

// One line of the doctor's report.
struct Finding {
  bool ok;
  std::string what;
  std::string advice;
};

std::vector<Finding> Examine(Client* client) {
  std::vector<Finding> findings;
  const auto info = client->Unary(client->admin(), &Stub::ServerInfo,
                                  v1::ServerInfoRequest());
  if (!info.ok()) {
    findings.push_back({false, std::string(info.status().message()),
                        "the daemon answers, but not this call"});
    return findings;
  }
  findings.push_back(
      {true,
       absl::StrFormat("torpord %s, data in %s, %s", info->version(),
                       info->data_dir(), info->numerics_id()),
       ""});
  findings.push_back({!info->draining(), "not draining",
                      "it was told to stop; connect to another"});
  const auto stats =
      client->Unary(client->admin(), &Stub::Stats, v1::StatsRequest());
  if (stats.ok()) {
    findings.push_back(
        {stats->quarantined_records() == 0,
         absl::StrFormat("%d quarantined records",
                         stats->quarantined_records()),
         "run torpor verify; check the disk; delete or rewind the sessions"});
    findings.push_back(
        {stats->live_bytes() * 10 < stats->max_bytes() * 9,
         absl::StrFormat("budget: %s of %s", Bytes(stats->live_bytes()),
                         Bytes(stats->max_bytes())),
         "new suspends will be refused soon: delete sessions, give them a TTL "
         "or the class cache, or raise max_bytes"});
    findings.push_back(
        {stats->disk_free_bytes() > uint64_t{1} << 30,
         absl::StrFormat("disk: %s free", Bytes(stats->disk_free_bytes())),
         "free space on the disk of the data directory"});
  } else {
    // Its tenants may not ask; that is no trouble of theirs.
    findings.push_back({absl::IsPermissionDenied(stats.status()),
                        "store: " + std::string(stats.status().message()),
                        "the daemon answers, but not this call"});
  }
  const auto models = client->Unary(
      client->models(), &v1::ModelService::Stub::List, v1::ListModelsRequest());
  if (models.ok()) {
    findings.push_back(
        {models->models_size() > 0,
         absl::StrFormat("%d models registered", models->models_size()),
         "register one: torpor model add DIR"});
    for (const v1::ModelState& m : models->models()) {
      findings.push_back(
          {m.executors_size() > 1,
           absl::StrFormat("model %s: %s", m.name(),
                           m.executors_size() > 1
                               ? "the daemon can replay it, " + m.numerics_id()
                               : m.daemon_executor_reason()),
           "engines can still use it; register its weights for replay here"});
    }
  }
  return findings;
}

// Who may connect, as far as modes tell.
std::vector<Finding> ExamineSocket(const std::string& path) {
  struct stat st;
  if (path.empty() || stat(path.c_str(), &st) != 0 ||
      (st.st_mode & S_IWGRP) == 0) {
    return {};
  }
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  const std::string closed = DirectoryClosedTo(st.st_gid, absolute.string());
  std::string advice = "listen in another directory";
  // One further up is shared with others.
  if (closed == absolute.parent_path()) {
    absl::StrAppendFormat(&advice,
                          ", or let them pass: chgrp %d %s; chmod g+x %s",
                          st.st_gid, closed, closed);
  }
  return {{closed.empty(),
           closed.empty()
               ? absl::StrFormat("%s: open to group %d", path, st.st_gid)
               : absl::StrFormat("%s: open to group %d, which may not pass %s "
                                 "as far as modes tell",
                                 path, st.st_gid, closed),
           advice}};
}

// What to do about a daemon that does not answer at the path, or elsewhere.
std::string AdviceForSilence(const std::string& path) {
  if (!path.empty() && access(path.c_str(), W_OK) != 0 && errno == EACCES) {
    return absl::StrFormat(
        "this user may not open %s: join the group that socket_group names, "
        "and look at the modes of the directories above it",
        path);
  }
  return "start it: torpord --data-dir DIR --listen unix:///path/torpor.sock";
}

// "2 (NVIDIA H100, ...)", or why there is none.
std::string DescribeGpus() {
  const auto devices = kernels::CudaDevices();
  if (!devices.ok()) return "none: " + std::string(devices.status().message());
  std::vector<std::string> names;
  for (const kernels::CudaDevice& device : *devices) {
    names.push_back(absl::StrFormat("%s, sm_%d%d, %s", device.name,
                                    device.compute_major, device.compute_minor,
                                    Bytes(device.memory_bytes)));
  }
  return absl::StrFormat("%d (%s)", names.size(), absl::StrJoin(names, "; "));
}

absl::Status Doctor(Context* context) {
  std::vector<Finding> findings;
  std::vector<std::string> isas;
  for (const kernels::Isa isa : kernels::AvailableIsas()) {
    isas.emplace_back(kernels::IsaName(isa));
  }
  findings.push_back(
      {isas.size() > 1,
       absl::StrFormat("CPU paths here: %s", absl::StrJoin(isas, ", ")),
       "replay runs on the portable path, which is slow"});
  findings.push_back({true, "GPUs here: " + DescribeGpus(), ""});
  const std::string path = UnixPathOf(context->client.address);
  for (Finding& finding : ExamineSocket(path)) {
    findings.push_back(std::move(finding));
  }
  const absl::StatusOr<Client*> client = context->Connect();
  if (client.ok()) {
    for (Finding& finding : Examine(*client)) {
      findings.push_back(std::move(finding));
    }
  } else {
    findings.push_back({false, std::string(client.status().message()),
                        AdviceForSilence(path)});
  }
  int bad = 0;
  nlohmann::json json = nlohmann::json::array();
  for (const Finding& finding : findings) {
    bad += finding.ok ? 0 : 1;
    json.push_back({{"ok", finding.ok},
                    {"what", finding.what},
                    {"advice", finding.ok ? "" : finding.advice}});
    if (context->json) continue;
    std::cout << (finding.ok ? "ok    " : "WARN  ") << finding.what << '\n';
    if (!finding.ok) std::cout << "      " << finding.advice << '\n';
  }
  if (context->json) PrintJson(json);
  return bad == 0 ? absl::OkStatus()
                  : absl::FailedPreconditionError(
                        absl::StrFormat("doctor: %d findings", bad));
}

}  // namespace

void AddAdminCommands(CLI::App* app, Context* context, Run* run) {
  CLI::App* stats = app->add_subcommand("stats", "What the daemon holds");
  stats->callback([=] { *run = [=] { return Stats(context); }; });

  auto deep = std::make_shared<bool>(false);
  CLI::App* verify =
      app->add_subcommand("verify", "Check every record of the store");
  verify->add_flag("--deep", *deep,
                   "Also recompute digests and ids, not only checksums");
  verify->callback([=] { *run = [=] { return Verify(*deep, context); }; });

  auto directory = std::make_shared<std::string>();
  CLI::App* backup = app->add_subcommand(
      "backup", "Copy every session into a directory on the daemon's host");
  backup->add_option("directory", *directory, "Empty or absent")->required();
  backup->callback([=] { *run = [=] { return Backup(*directory, context); }; });

  auto service = std::make_shared<std::string>();
  CLI::App* health = app->add_subcommand(
      "health", "Exit code 0 if the daemon takes calls, for probes");
  health->add_option("--service", *service,
                     "One service, for example torpor.v1.SessionService");
  health->callback([=] { *run = [=] { return Health(*service, context); }; });

  CLI::App* doctor =
      app->add_subcommand("doctor", "Look for trouble and say what to do");
  doctor->callback([=] { *run = [=] { return Doctor(context); }; });
}

}  // namespace torpor::service::cli
