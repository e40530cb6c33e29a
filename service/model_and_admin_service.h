// SPDX-License-Identifier: Apache-2.0
//
// torpor.v1.ModelService and torpor.v1.AdminService.

#ifndef TORPOR_SERVICE_MODEL_AND_ADMIN_SERVICE_H_
#define TORPOR_SERVICE_MODEL_AND_ADMIN_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <string>

#include "service/backend.h"
#include "torpor/v1/admin_service.grpc.pb.h"
#include "torpor/v1/model_service.grpc.pb.h"

namespace torpor::service {

class ModelServiceImpl final : public v1::ModelService::CallbackService {
 public:
  // `backend` outlives the service.
  explicit ModelServiceImpl(Backend* backend) : backend_(*backend) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::ModelState* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeModelRequest* request,
                                     v1::ModelState* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListModelsRequest* request,
                                 v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Plan(grpc::CallbackServerContext* context,
                                 const v1::PlanRequest* request,
                                 v1::PlanResponse* response) override;

 private:
  Backend& backend_;
};

struct ServerFacts {
  std::string data_dir;
  int64_t started_at = 0;
  std::string numerics;
};

class AdminServiceImpl final : public v1::AdminService::CallbackService {
 public:
  AdminServiceImpl(Backend* backend, ServerFacts facts)
      : backend_(*backend), facts_(std::move(facts)) {}

  grpc::ServerUnaryReactor* ServerInfo(
      grpc::CallbackServerContext* context,
      const v1::ServerInfoRequest* request,
      v1::ServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* Stats(grpc::CallbackServerContext* context,
                                  const v1::StatsRequest* request,
                                  v1::StatsResponse* response) override;
  grpc::ServerWriteReactor<v1::VerifyProgress>* Verify(
      grpc::CallbackServerContext* context,
      const v1::VerifyRequest* request) override;
  grpc::ServerWriteReactor<v1::BackupProgress>* Backup(
      grpc::CallbackServerContext* context,
      const v1::BackupRequest* request) override;

 private:
  Backend& backend_;
  const ServerFacts facts_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_MODEL_AND_ADMIN_SERVICE_H_
