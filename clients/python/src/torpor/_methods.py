# SPDX-License-Identifier: Apache-2.0
"""The verbs of torpor.v1 as the client calls them."""

from __future__ import annotations

from collections.abc import Callable

from torpor._rpc import Method
from torpor.model import Model
from torpor.v1 import admin_service_pb2 as admin
from torpor.v1 import model_service_pb2 as model
from torpor.v1 import session_service_pb2 as session
from torpor.v1 import types_pb2 as types

BEGIN_SUSPEND: Method[session.BeginSuspendRequest, session.BeginSuspendResponse] = (
    Method("SessionService/BeginSuspend", session.BeginSuspendResponse.FromString)
)
PUT_ROWS: Method[session.PutRowsRequest, session.PutRowsResponse] = Method(
    "SessionService/PutRows", session.PutRowsResponse.FromString
)
COMMIT: Method[session.CommitRequest, types.SuspendReceipt] = Method(
    "SessionService/Commit", types.SuspendReceipt.FromString
)
ABANDON_SUSPEND: Method[
    session.AbandonSuspendRequest, session.AbandonSuspendResponse
] = Method("SessionService/AbandonSuspend", session.AbandonSuspendResponse.FromString)
SUSPEND: Method[session.SuspendRequest, types.SuspendReceipt] = Method(
    "SessionService/Suspend", types.SuspendReceipt.FromString
)
BEGIN_RESUME: Method[session.BeginResumeRequest, session.BeginResumeResponse] = Method(
    "SessionService/BeginResume", session.BeginResumeResponse.FromString
)
READ_TOKENS: Method[session.ReadTokensRequest, types.TokenChunk] = Method(
    "SessionService/ReadTokens", types.TokenChunk.FromString
)
READ_ROWS: Method[session.ReadRowsRequest, types.RowChunk] = Method(
    "SessionService/ReadRows", types.RowChunk.FromString
)
WINDOW: Method[session.WindowRequest, session.WindowChunk] = Method(
    "SessionService/Window", session.WindowChunk.FromString
)
RELEASE: Method[session.ReleaseRequest, types.ResumeReceipt] = Method(
    "SessionService/Release", types.ResumeReceipt.FromString
)
RESUME: Method[session.BeginResumeRequest, session.ResumeChunk] = Method(
    "SessionService/Resume", session.ResumeChunk.FromString
)
OPEN_PLANE: Method[session.OpenPlaneRequest, session.DataPlaneChoice] = Method(
    "SessionService/OpenPlane", session.DataPlaneChoice.FromString
)
FORK: Method[session.ForkRequest, session.SessionState] = Method(
    "SessionService/Fork", session.SessionState.FromString
)
REWIND: Method[session.RewindRequest, session.SessionState] = Method(
    "SessionService/Rewind", session.SessionState.FromString
)
DESCRIBE: Method[session.DescribeRequest, session.SessionState] = Method(
    "SessionService/Describe", session.SessionState.FromString
)
LIST: Method[session.ListRequest, session.ListResponse] = Method(
    "SessionService/List", session.ListResponse.FromString
)
DELETE: Method[session.DeleteRequest, session.DeleteResponse] = Method(
    "SessionService/Delete", session.DeleteResponse.FromString
)
TOUCH: Method[session.TouchRequest, session.SessionState] = Method(
    "SessionService/Touch", session.SessionState.FromString
)
LOOKUP_PREFIX: Method[session.LookupPrefixRequest, session.LookupPrefixResponse] = (
    Method("SessionService/LookupPrefix", session.LookupPrefixResponse.FromString)
)
PREFETCH: Method[session.PrefetchRequest, session.PrefetchResponse] = Method(
    "SessionService/Prefetch", session.PrefetchResponse.FromString
)
EXPORT: Method[session.ExportRequest, session.TransferChunk] = Method(
    "SessionService/Export", session.TransferChunk.FromString
)
IMPORT: Method[session.ImportRequest, session.ImportResponse] = Method(
    "SessionService/Import", session.ImportResponse.FromString
)

REGISTER: Method[model.RegisterRequest, model.ModelState] = Method(
    "ModelService/Register", model.ModelState.FromString
)
DESCRIBE_MODEL: Method[model.DescribeModelRequest, model.ModelState] = Method(
    "ModelService/Describe", model.ModelState.FromString
)
LIST_MODELS: Method[model.ListModelsRequest, model.ListModelsResponse] = Method(
    "ModelService/List", model.ListModelsResponse.FromString
)
PLAN: Method[model.PlanRequest, model.PlanResponse] = Method(
    "ModelService/Plan", model.PlanResponse.FromString
)

SERVER_INFO: Method[admin.ServerInfoRequest, admin.ServerInfoResponse] = Method(
    "AdminService/ServerInfo", admin.ServerInfoResponse.FromString
)
STATS: Method[admin.StatsRequest, admin.StatsResponse] = Method(
    "AdminService/Stats", admin.StatsResponse.FromString
)
VERIFY: Method[admin.VerifyRequest, admin.VerifyProgress] = Method(
    "AdminService/Verify", admin.VerifyProgress.FromString
)
BACKUP: Method[admin.BackupRequest, admin.BackupProgress] = Method(
    "AdminService/Backup", admin.BackupProgress.FromString
)

# A registered model by its name.
ModelOf = Callable[[str], Model]
