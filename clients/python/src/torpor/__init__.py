# SPDX-License-Identifier: Apache-2.0
"""Client of torpord, which keeps sleeping LLM sessions on SSD and wakes them.

    with torpor.connect("unix:///run/torpor/torpor.sock") as client:
        client.suspend(torpor.SuspendSpec("chat", "model", ids), rows)
        woken = client.resume(torpor.ResumeSpec("chat", mode="exact"))

docs/PYTHON.md has the whole of it; proto/torpor/v1/ says what the verbs mean.
"""

from torpor._rpc import Retry, Tls
from torpor.admin import BackupReport, ServerInfo, Stats, VerifyReport
from torpor.client import Client, connect
from torpor.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    TorporError,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unknown,
    ViewHeld,
)
from torpor.model import (
    ComeBack,
    Figures,
    Fingerprint,
    Layout,
    Model,
    ReplayMode,
    ReplayPlan,
    ShardAxis,
    Slot,
    SlotKind,
)
from torpor.lease import EngineReplay, Lease
from torpor.prefetch import Prefetched
from torpor.registry import Models
from torpor.resume import ResumeSpec, Tokens, Window, Woken
from torpor.rows import Piece, Rows, RowSet
from torpor.session import (
    Divergence,
    ExtraKeySpan,
    Floor,
    LayerError,
    Provenance,
    ProvenanceRange,
    ResumeReceipt,
    SessionBytes,
    SessionClass,
    SessionState,
    SuspendReceipt,
    Verdict,
)
from torpor.suspend import SuspendSpec, Ticket, TicketHandle, new_operation_id
from torpor.transfer import Exported, Imported
from torpor.witness import LayerWitness, Witness, make_witness

__all__ = [
    "Aborted",
    "AlreadyExists",
    "BackupReport",
    "Cancelled",
    "Client",
    "ComeBack",
    "DataLoss",
    "DeadlineExceeded",
    "Divergence",
    "EngineReplay",
    "Exported",
    "ExtraKeySpan",
    "FailedPrecondition",
    "Figures",
    "Fingerprint",
    "Floor",
    "Imported",
    "Internal",
    "InvalidArgument",
    "LayerError",
    "LayerWitness",
    "Layout",
    "Lease",
    "Model",
    "Models",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "Piece",
    "Prefetched",
    "Provenance",
    "ProvenanceRange",
    "ReplayMode",
    "ReplayPlan",
    "ResourceExhausted",
    "ResumeReceipt",
    "ResumeSpec",
    "Retry",
    "RowSet",
    "Rows",
    "ServerInfo",
    "SessionBytes",
    "SessionClass",
    "SessionState",
    "ShardAxis",
    "Slot",
    "SlotKind",
    "Stats",
    "SuspendReceipt",
    "SuspendSpec",
    "Ticket",
    "TicketHandle",
    "Tls",
    "Tokens",
    "TorporError",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "Verdict",
    "VerifyReport",
    "ViewHeld",
    "Window",
    "Witness",
    "Woken",
    "connect",
    "make_witness",
    "new_operation_id",
]
