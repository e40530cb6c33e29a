# SPDX-License-Identifier: Apache-2.0
"""The client: every verb that the daemon serves.

A timeout is in seconds and holds for the whole call, retries included. After
UNAVAILABLE a call is tried again where a second one is harmless: reads, and
writes that carry an operation id, which is drawn once for each call here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from torpor import _methods as m
from torpor import _tokens, admin, errors, rows, transfer
from torpor import lease as _lease
from torpor import prefetch as _prefetch
from torpor import resume as _resume
from torpor import suspend as _suspend
from torpor._message import message
from torpor._paths import absolute
from torpor._plane import Plane, Planes
from torpor._rpc import Connection, Deadline, Message, Method, Retry, Tls
from torpor.model import Fingerprint
from torpor.lease import Lease
from torpor.prefetch import Prefetched
from torpor.registry import Models
from torpor.resume import ResumeSpec, Woken
from torpor.session import ExtraKeySpan, SessionClass, SessionState, SuspendReceipt
from torpor.suspend import SuspendSpec, Ticket, TicketHandle, new_operation_id
from torpor.transfer import Exported, Imported
from torpor.v1 import admin_service_pb2 as admin_pb
from torpor.v1 import session_service_pb2 as pb
from torpor.witness import Witness

_CONNECT_S = 5.0

Req = TypeVar("Req", bound=Message)
Res = TypeVar("Res")


class Client:
    """Made by `connect`. Thread-safe; does not survive a fork."""

    def __init__(self, connection: Connection, planes: Planes, timeout: float) -> None:
        self._connection = connection
        self._planes = planes
        self._timeout = timeout
        self.models = Models(self)

    @property
    def plane_reason(self) -> str:
        """Why rows last went over gRPC; empty while shared memory serves."""
        return self._planes.reason

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- suspend

    def suspend(
        self,
        spec: SuspendSpec,
        rows: rows.GivenRows,
        *,
        witness: Witness | None = None,
        client_state: bytes = b"",
        timeout: float | None = None,
    ) -> SuspendReceipt:
        """Puts a session to sleep; durable when it returns.

        `rows` has every compact slot (and, `with_snapshot`, every window slot):
        an array of all its rows or of exactly the new ones, Rows(first, array),
        or a function of (begin, end). Functions may be asked twice.
        """
        deadline = self._deadline(timeout)
        model = self._connection.retrying(deadline, lambda: self.models.get(spec.model))
        return self._connection.retrying(
            deadline,
            lambda: _suspend.suspend(
                self._connection,
                self._planes,
                model,
                spec,
                rows,
                witness,
                client_state,
                deadline,
            ),
        )

    def begin_suspend(
        self, spec: SuspendSpec, *, timeout: float | None = None
    ) -> Ticket:
        """Opens a ticket, into which any process may put rows."""
        deadline = self._deadline(timeout)
        model = self._connection.retrying(deadline, lambda: self.models.get(spec.model))
        return self._connection.retrying(
            deadline,
            lambda: _suspend.begin(
                self._connection, self._planes, self._timeout, model, spec, deadline
            ),
        )

    def attach(self, handle: TicketHandle) -> Ticket:
        """A ticket that another process opened. It stays open when left."""
        return Ticket(
            self._connection, self._planes, self._timeout, handle, owner=False
        )

    # ---- resume

    def resume(
        self,
        spec: ResumeSpec | bytes | str,
        *,
        with_tokens: bool = False,
        sink: rows.Sink | None = None,
        timeout: float | None = None,
    ) -> Woken:
        """Wakes a session (or ResumeSpec's tokens): plan, rows, window, receipt.

        With a sink no row is copied here: it sees read-only views, which must
        not outlive its call (ViewHeld); once it has seen one, nothing is
        retried.
        """
        asked = spec if isinstance(spec, ResumeSpec) else ResumeSpec(spec)
        deadline = self._deadline(timeout)
        one = _resume.OneResume(self._connection, self._planes, self.models.get)
        return self._connection.retrying(
            deadline,
            lambda: one.run(asked, with_tokens, sink, deadline),
            lambda: not one.handed_on,
        )

    def begin_resume(
        self, spec: ResumeSpec | bytes | str, *, timeout: float | None = None
    ) -> Lease:
        """Pins a session and plans its replay."""
        asked = spec if isinstance(spec, ResumeSpec) else ResumeSpec(spec)
        deadline = self._deadline(timeout)
        return self._connection.retrying(
            deadline,
            lambda: _lease.begin_resume(
                self._connection,
                self._planes,
                self._timeout,
                self.models.get,
                asked,
                deadline,
            ),
        )

    def prefetch(
        self,
        spec: ResumeSpec | bytes | str,
        *,
        replay: bool = False,
        hold_seconds: int = 0,
        timeout: float | None = None,
    ) -> Prefetched:
        """A resume as in `spec` is near: reads its rows ahead; with `replay`, also
        rebuilds its window and holds it (0: a minute) for that resume alone.
        Answers at once; a resume that comes before it is done waits for it."""
        asked = spec if isinstance(spec, ResumeSpec) else ResumeSpec(spec)
        request = _prefetch.request_of(asked, replay, hold_seconds)
        return Prefetched.from_pb(self.call(m.PREFETCH, request, timeout))

    # ---- from daemon to daemon

    def export(
        self,
        session: bytes | str,
        path: str | Path,
        *,
        replace: bool = False,
        timeout: float | None = None,
    ) -> Exported:
        """A session into a file, verified and durable. Written as PATH.part; what
        an earlier try left of it is gone on with."""
        target = Path(path)
        if not replace and target.exists():
            raise errors.AlreadyExists(f"{target}: is there; replace=True replaces it")
        deadline = self._deadline(timeout)
        state = self.describe(session, timeout=deadline.left())
        return transfer.export_file(self._connection, state, target, deadline)

    def import_(
        self,
        path: str | Path,
        *,
        session: bytes | str = b"",
        timeout: float | None = None,
    ) -> Imported:
        """A session out of a file, under its own name or `session`, which must not
        exist. The file is verified before the daemon hears of it. Called again
        for the same file, it goes on where it broke, and changes nothing once it
        is done."""
        name = _tokens.as_session(session)
        return transfer.import_file(
            self._connection, Path(path), name, self._deadline(timeout)
        )

    def pull(
        self,
        source: Client,
        session: bytes | str,
        *,
        as_session: bytes | str = b"",
        timeout: float | None = None,
    ) -> Imported:
        """A session of another daemon, straight from it; as `import_` otherwise.
        It stays there."""
        return transfer.pull(
            self._connection,
            source._connection,
            _tokens.as_session(session),
            _tokens.as_session(as_session),
            self._deadline(timeout),
        )

    # ---- the other verbs of sessions

    def fork(
        self,
        source: bytes | str,
        target: bytes | str,
        *,
        at: int | None = None,
        source_version: int = 0,
        expected_version: int = 0,
        operation_id: str | None = None,
        timeout: float | None = None,
    ) -> SessionState:
        """A second name for the first `at` tokens (None: all). Copies no rows."""
        request = message(
            pb.ForkRequest,
            source=_tokens.as_session(source),
            source_version=source_version,
            target=_tokens.as_session(target),
            expected_version=expected_version,
            operation_id=operation_id or new_operation_id(),
            at=at,
        )
        return SessionState.from_pb(self.call(m.FORK, request, timeout))

    def rewind(
        self,
        session: bytes | str,
        at: int,
        *,
        expected_version: int,
        operation_id: str | None = None,
        timeout: float | None = None,
    ) -> SessionState:
        """Cuts a session back to `at` tokens."""
        request = message(
            pb.RewindRequest,
            session=_tokens.as_session(session),
            expected_version=expected_version,
            operation_id=operation_id or new_operation_id(),
            at=at,
        )
        return SessionState.from_pb(self.call(m.REWIND, request, timeout))

    def describe(
        self, session: bytes | str, *, timeout: float | None = None
    ) -> SessionState:
        request = pb.DescribeRequest(session=_tokens.as_session(session))
        return SessionState.from_pb(self.call(m.DESCRIBE, request, timeout))

    def list(
        self,
        prefix: bytes | str = b"",
        *,
        page_size: int = 100,
        timeout: float | None = None,
    ) -> Iterator[SessionState]:
        """Sessions in order of their ids, page by page as they are asked for.
        The timeout is that of a page."""
        token = ""
        while True:
            request = message(
                pb.ListRequest,
                prefix=_tokens.as_session(prefix),
                page_size=page_size,
                page_token=token,
            )
            page = self.call(m.LIST, request, timeout)
            for state in page.sessions:
                yield SessionState.from_pb(state)
            token = page.next_page_token
            if not token:
                return

    def delete(
        self,
        session: bytes | str,
        *,
        expected_version: int,
        operation_id: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Deletes a session; returns the version that is gone."""
        request = message(
            pb.DeleteRequest,
            session=_tokens.as_session(session),
            expected_version=expected_version,
            operation_id=operation_id or new_operation_id(),
        )
        return self.call(m.DELETE, request, timeout).version

    def touch(
        self,
        session: bytes | str,
        *,
        session_class: SessionClass | None = None,
        ttl_seconds: int = 0,
        pin_seconds: int = 0,
        labels: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SessionState:
        """Changes class, TTL, pin (0 keeps, -1 clears) or labels (an empty value
        removes one). Never retried: it has no operation id."""
        request = message(
            pb.TouchRequest,
            session=_tokens.as_session(session),
            session_class=_suspend.class_name(session_class),
            ttl_seconds=ttl_seconds,
            pin_seconds=pin_seconds,
            labels=labels,
        )
        return SessionState.from_pb(
            self._connection.unary(m.TOUCH, request, self._deadline(timeout))
        )

    def lookup_prefix(
        self,
        model: str,
        ids: _tokens.Ids,
        *,
        fingerprint: Fingerprint = Fingerprint(),
        extra_keys: Sequence[ExtraKeySpan] = (),
        timeout: float | None = None,
    ) -> int:
        """How many of these tokens are stored; 0 is an answer."""
        given = _tokens.as_ids(ids)

        def stream() -> Iterator[pb.LookupPrefixRequest]:
            header = message(
                pb.LookupPrefixHeader, model=model, fingerprint=fingerprint.to_pb()
            )
            yield pb.LookupPrefixRequest(header=header)
            for chunk in _tokens.chunks(given, extra_keys):
                yield pb.LookupPrefixRequest(tokens=chunk)

        deadline = self._deadline(timeout)
        answer = self._connection.retrying(
            deadline,
            lambda: self._connection.send(m.LOOKUP_PREFIX, stream(), deadline),
        )
        return answer.hit_len

    # ---- the node

    def server_info(self, *, timeout: float | None = None) -> admin.ServerInfo:
        request = admin_pb.ServerInfoRequest()
        return admin.ServerInfo.from_pb(self.call(m.SERVER_INFO, request, timeout))

    def stats(self, *, timeout: float | None = None) -> admin.Stats:
        request = admin_pb.StatsRequest()
        return admin.Stats.from_pb(self.call(m.STATS, request, timeout))

    def verify(
        self,
        *,
        deep: bool = False,
        progress: admin.VerifyProgress | None = None,
        timeout: float | None = None,
    ) -> admin.VerifyReport:
        """Walks every record and reports damage; repairs nothing."""
        request = admin_pb.VerifyRequest(deep=deep)
        report = None
        for answer in self._connection.receive(
            m.VERIFY, request, self._deadline(timeout)
        ):
            report = admin.VerifyReport.from_pb(answer)
            if progress is not None:
                progress(report)
        if report is None or not report.done:
            raise errors.DataLoss("verify: the stream ended without a report")
        return report

    def backup(
        self,
        directory: str | Path,
        *,
        progress: admin.BackupProgress | None = None,
        timeout: float | None = None,
    ) -> admin.BackupReport:
        """A verified copy into an empty directory of the daemon's host (a
        relative one is made absolute here). Never retried: a second one would
        find it used."""
        request = message(admin_pb.BackupRequest, directory=absolute(directory))
        report = None
        for answer in self._connection.receive(
            m.BACKUP, request, self._deadline(timeout)
        ):
            report = admin.BackupReport.from_pb(answer)
            if progress is not None:
                progress(report)
        if report is None or not report.done:
            raise errors.DataLoss("backup: the stream ended without a report")
        return report

    def healthy(self, service: str = "", *, timeout: float | None = None) -> bool:
        """Whether the daemon (or one of its services) serves."""
        answer = self._connection.raw_unary(
            admin.HEALTH_CHECK, admin.health_request(service), self._deadline(timeout)
        )
        return admin.is_serving(answer)

    # ----

    def call(
        self, method: Method[Req, Res], request: Req, timeout: float | None
    ) -> Res:
        """A unary verb of which a second call is harmless."""
        deadline = self._deadline(timeout)
        return self._connection.retrying(
            deadline, lambda: self._connection.unary(method, request, deadline)
        )

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._timeout if timeout is None else timeout)


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: Tls | str | Path | bool | None = None,
    timeout: float = 600.0,
    plane: Plane = "auto",
    retry: Retry = Retry(),
) -> Client:
    """A client of the daemon at "unix:///path" or "host:port".

    `tls`: True trusts the system's roots, a path is the PEM file of a CA, Tls
    has a client certificate too. `plane`: "auto" uses shared memory where the
    daemon serves it, "grpc" never does, "shm" takes nothing else. Unavailable
    when nobody answers within 5 s.
    """
    if isinstance(tls, bool):
        tls = Tls() if tls else None
    elif isinstance(tls, (str, Path)):
        tls = Tls(ca=tls)
    planes = Planes(plane, address)
    Deadline(timeout)
    connection = Connection(address, token, tls, retry)
    try:
        connection.await_ready(_CONNECT_S)
    except BaseException:
        connection.close()
        raise
    return Client(connection, planes, timeout)
