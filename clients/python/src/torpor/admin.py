# SPDX-License-Identifier: Apache-2.0
"""The node itself: what it is, what it holds, whether it is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torpor import errors
from torpor.v1 import admin_service_pb2 as pb


@dataclass(frozen=True)
class ServerInfo:
    version: str
    format_version: int
    data_dir: str
    # Unix seconds.
    started_at: int
    unimplemented: tuple[str, ...]
    numerics_id: str
    draining: bool

    @classmethod
    def from_pb(cls, m: pb.ServerInfoResponse) -> ServerInfo:
        return cls(
            version=m.version,
            format_version=m.format_version,
            data_dir=m.data_dir,
            started_at=m.started_at,
            unimplemented=tuple(m.unimplemented),
            numerics_id=m.numerics_id,
            draining=m.draining,
        )


@dataclass(frozen=True)
class Stats:
    sessions: int
    records: int
    live_bytes: int
    reserved_bytes: int
    max_bytes: int
    file_bytes: int
    disk_free_bytes: int
    staged_records: int
    trashed_records: int
    quarantined_records: int
    open_tickets: int
    open_leases: int
    commits: int

    @classmethod
    def from_pb(cls, m: pb.StatsResponse) -> Stats:
        return cls(
            sessions=m.sessions,
            records=m.records,
            live_bytes=m.live_bytes,
            reserved_bytes=m.reserved_bytes,
            max_bytes=m.max_bytes,
            file_bytes=m.file_bytes,
            disk_free_bytes=m.disk_free_bytes,
            staged_records=m.staged_records,
            trashed_records=m.trashed_records,
            quarantined_records=m.quarantined_records,
            open_tickets=m.open_tickets,
            open_leases=m.open_leases,
            commits=m.commits,
        )


@dataclass(frozen=True)
class VerifyReport:
    records_checked: int
    records_total: int
    sessions_checked: int
    # What is wrong, one line each; of the last report only.
    problems: tuple[str, ...]
    done: bool

    @classmethod
    def from_pb(cls, m: pb.VerifyProgress) -> VerifyReport:
        return cls(
            records_checked=m.records_checked,
            records_total=m.records_total,
            sessions_checked=m.sessions_checked,
            problems=tuple(m.problems),
            done=m.done,
        )


@dataclass(frozen=True)
class BackupReport:
    sessions_copied: int
    records_copied: int
    bytes_copied: int
    # Sessions that could not be copied, and why; of the last report only.
    problems: tuple[str, ...]
    done: bool

    @classmethod
    def from_pb(cls, m: pb.BackupProgress) -> BackupReport:
        return cls(
            sessions_copied=m.sessions_copied,
            records_copied=m.records_copied,
            bytes_copied=m.bytes_copied,
            problems=tuple(m.problems),
            done=m.done,
        )


VerifyProgress = Callable[[VerifyReport], None]
BackupProgress = Callable[[BackupReport], None]

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = 1


def health_request(service: str) -> bytes:
    """grpc.health.v1.HealthCheckRequest: field 1, the service's name."""
    name = service.encode()
    if len(name) > 127:
        raise errors.InvalidArgument(
            f"service: got a name of {len(name)} bytes, wanted at most 127"
        )
    return bytes((0x0A, len(name))) + name if name else b""


def is_serving(answer: bytes) -> bool:
    """grpc.health.v1.HealthCheckResponse: field 1, the status."""
    return answer[:2] == bytes((0x08, _SERVING))
