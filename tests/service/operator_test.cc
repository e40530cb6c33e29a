// SPDX-License-Identifier: Apache-2.0
//
// Calls that concern every tenant, or the node, are an operator's.

#include <filesystem>
#include <map>

#include "service/tenants.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;

class OperatorTest : public ServiceTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->tenants = {
        {.name = "default", .is_operator = default_is_operator_},
        {.name = "a", .number = 7, .token_hashes = {TokenHash("a")}},
        {.name = "op",
         .number = 8,
         .token_hashes = {TokenHash("op")},
         .is_operator = true}};
  }

  static std::unique_ptr<grpc::ClientContext> ContextOf(
      const std::string& token) {
    auto context = NewContext();
    if (!token.empty()) {
      context->AddMetadata("authorization", "Bearer " + token);
    }
    return context;
  }

  // How every call of an operator's ends for the bearer of a token, by name.
  std::map<std::string, absl::Status> AskAll(const std::string& token) {
    std::map<std::string, absl::Status> out;
    v1::StatsResponse stats;
    out["Stats"] = FromGrpcStatus(
        admin().Stats(ContextOf(token).get(), v1::StatsRequest(), &stats));
    v1::ModelState model;
    out["Register"] = FromGrpcStatus(
        models().Register(ContextOf(token).get(),
                          ToyModel("toy of " + token, "weights"), &model));
    {
      const auto context = ContextOf(token);
      const auto reader = admin().Verify(context.get(), v1::VerifyRequest());
      v1::VerifyProgress progress;
      while (reader->Read(&progress)) {
      }
      out["Verify"] = FromGrpcStatus(reader->Finish());
    }
    {
      const auto context = ContextOf(token);
      v1::BackupRequest request;
      request.set_directory(BackupOf(token));
      const auto reader = admin().Backup(context.get(), request);
      v1::BackupProgress progress;
      while (reader->Read(&progress)) {
      }
      out["Backup"] = FromGrpcStatus(reader->Finish());
    }
    return out;
  }
  std::string BackupOf(const std::string& token) const {
    return dir().File("backup of " + token);
  }
  void ExpectRefused(const std::string& token, const std::string& got) {
    for (const auto& [call, status] : AskAll(token)) {
      EXPECT_THAT(status,
                  HasStatus(StatusCode::kPermissionDenied,
                            call + ": got " + got + ", wanted an operator"));
    }
    EXPECT_FALSE(std::filesystem::exists(BackupOf(token)));
  }

  // The fixture registers its model without a credential.
  bool default_is_operator_ = true;
};

TEST_F(OperatorTest, CallsThatConcernAllAreItsAlone) {
  for (const char* token : {"op", ""}) {
    for (const auto& [call, status] : AskAll(token)) {
      EXPECT_OK(status) << call;
    }
    EXPECT_TRUE(std::filesystem::exists(BackupOf(token)));
  }
  ExpectRefused("a", "tenant 7");

  // What the node is and which models there are, everybody may know.
  v1::ServerInfoResponse info;
  EXPECT_OK(FromGrpcStatus(admin().ServerInfo(ContextOf("a").get(),
                                              v1::ServerInfoRequest(), &info)));
  v1::ListModelsResponse list;
  EXPECT_OK(FromGrpcStatus(
      models().List(ContextOf("a").get(), v1::ListModelsRequest(), &list)));
  EXPECT_EQ(list.models_size(), 3);
  v1::ModelState state;
  v1::DescribeModelRequest describe;
  describe.set_name("toy");
  EXPECT_OK(FromGrpcStatus(
      models().Describe(ContextOf("a").get(), describe, &state)));
  v1::PlanResponse plan;
  v1::PlanRequest request;
  request.set_model("toy");
  EXPECT_OK(
      FromGrpcStatus(models().Plan(ContextOf("a").get(), request, &plan)));
}

TEST_F(OperatorTest, LeavingTheTokenOutMakesNobodyOne) {
  default_is_operator_ = false;
  Restart();
  ExpectRefused("", "tenant 0");
}

}  // namespace
}  // namespace torpor::service
