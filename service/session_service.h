// SPDX-License-Identifier: Apache-2.0
//
// torpor.v1.SessionService. One handler a verb: decode and validate, call,
// encode. Suspend and resume have files of their own
// (service/suspend_handlers.cc, service/resume_handlers.cc), so have Prefetch
// (service/prefetch_handlers.cc), Export and Import
// (service/transfer_handlers.cc).

#ifndef TORPOR_SERVICE_SESSION_SERVICE_H_
#define TORPOR_SERVICE_SESSION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include "service/backend.h"
#include "torpor/v1/session_service.grpc.pb.h"

namespace torpor::service {

using RawReader = grpc::ServerReadReactor<grpc::ByteBuffer>;
using RawWriter = grpc::ServerWriteReactor<grpc::ByteBuffer>;
using RawBidi = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Row-carrying methods raw, the others with protobuf messages.
template <class Base>
using WithRowMethods = v1::SessionService::WithRawCallbackMethod_PutRows<
    v1::SessionService::WithRawCallbackMethod_Suspend<
        v1::SessionService::WithRawCallbackMethod_ReadRows<
            v1::SessionService::WithRawCallbackMethod_Window<
                v1::SessionService::WithRawCallbackMethod_Resume<Base>>>>>;
template <class Base>
using WithMessageMethods = v1::SessionService::WithCallbackMethod_BeginSuspend<
    v1::SessionService::WithCallbackMethod_Commit<
        v1::SessionService::WithCallbackMethod_AbandonSuspend<
            v1::SessionService::WithCallbackMethod_BeginResume<
                v1::SessionService::WithCallbackMethod_ReadTokens<
                    v1::SessionService::WithCallbackMethod_Release<
                        v1::SessionService::WithCallbackMethod_Fork<
                            v1::SessionService::WithCallbackMethod_Rewind<
                                v1::SessionService::WithCallbackMethod_Describe<
                                    Base>>>>>>>>>;
template <class Base>
using WithOtherMethods = v1::SessionService::WithCallbackMethod_List<
    v1::SessionService::WithCallbackMethod_Delete<
        v1::SessionService::WithCallbackMethod_Touch<
            v1::SessionService::WithCallbackMethod_LookupPrefix<
                v1::SessionService::WithCallbackMethod_OpenPlane<
                    v1::SessionService::WithCallbackMethod_Export<
                        v1::SessionService::WithCallbackMethod_Import<
                            v1::SessionService::WithCallbackMethod_Prefetch<
                                Base>>>>>>>>;

using SessionServiceBase = WithRowMethods<
    WithMessageMethods<WithOtherMethods<v1::SessionService::Service>>>;

class SessionServiceImpl final : public SessionServiceBase {
 public:
  // `backend` outlives the service.
  explicit SessionServiceImpl(Backend* backend) : backend_(*backend) {}

  // ---- suspend (service/suspend_handlers.cc)
  grpc::ServerReadReactor<v1::BeginSuspendRequest>* BeginSuspend(
      grpc::CallbackServerContext* context,
      v1::BeginSuspendResponse* response) override;
  RawReader* PutRows(grpc::CallbackServerContext* context,
                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Commit(grpc::CallbackServerContext* context,
                                   const v1::CommitRequest* request,
                                   v1::SuspendReceipt* response) override;
  grpc::ServerUnaryReactor* AbandonSuspend(
      grpc::CallbackServerContext* context,
      const v1::AbandonSuspendRequest* request,
      v1::AbandonSuspendResponse* response) override;
  RawReader* Suspend(grpc::CallbackServerContext* context,
                     grpc::ByteBuffer* response) override;

  // ---- resume (service/resume_handlers.cc)
  grpc::ServerReadReactor<v1::BeginResumeRequest>* BeginResume(
      grpc::CallbackServerContext* context,
      v1::BeginResumeResponse* response) override;
  grpc::ServerWriteReactor<v1::TokenChunk>* ReadTokens(
      grpc::CallbackServerContext* context,
      const v1::ReadTokensRequest* request) override;
  RawWriter* ReadRows(grpc::CallbackServerContext* context,
                      const grpc::ByteBuffer* request) override;
  RawWriter* Window(grpc::CallbackServerContext* context,
                    const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ResumeReceipt* response) override;
  RawBidi* Resume(grpc::CallbackServerContext* context) override;

  // ---- ahead of a resume (service/prefetch_handlers.cc)
  grpc::ServerUnaryReactor* Prefetch(grpc::CallbackServerContext* context,
                                     const v1::PrefetchRequest* request,
                                     v1::PrefetchResponse* response) override;

  // ---- data planes (service/plane_handlers.cc)
  grpc::ServerUnaryReactor* OpenPlane(grpc::CallbackServerContext* context,
                                      const v1::OpenPlaneRequest* request,
                                      v1::DataPlaneChoice* response) override;

  // ---- from node to node (service/transfer_handlers.cc)
  grpc::ServerWriteReactor<v1::TransferChunk>* Export(
      grpc::CallbackServerContext* context,
      const v1::ExportRequest* request) override;
  grpc::ServerBidiReactor<v1::ImportRequest, v1::ImportResponse>* Import(
      grpc::CallbackServerContext* context) override;

  // ---- the rest (service/session_handlers.cc)
  grpc::ServerUnaryReactor* Fork(grpc::CallbackServerContext* context,
                                 const v1::ForkRequest* request,
                                 v1::SessionState* response) override;
  grpc::ServerUnaryReactor* Rewind(grpc::CallbackServerContext* context,
                                   const v1::RewindRequest* request,
                                   v1::SessionState* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeRequest* request,
                                     v1::SessionState* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteResponse* response) override;
  grpc::ServerUnaryReactor* Touch(grpc::CallbackServerContext* context,
                                  const v1::TouchRequest* request,
                                  v1::SessionState* response) override;
  grpc::ServerReadReactor<v1::LookupPrefixRequest>* LookupPrefix(
      grpc::CallbackServerContext* context,
      v1::LookupPrefixResponse* response) override;

 private:
  Backend& backend_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SESSION_SERVICE_H_
