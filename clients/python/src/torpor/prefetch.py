# SPDX-License-Identifier: Apache-2.0
"""Work ahead of a resume: what is asked, and what was begun."""

from __future__ import annotations

from dataclasses import dataclass

from torpor import _tokens, errors
from torpor._message import message
from torpor.model import ReplayPlan
from torpor.resume import ResumeSpec
from torpor.v1 import session_service_pb2 as pb


@dataclass(frozen=True)
class Prefetched:
    """What was begun; the daemon goes on with it."""

    version: int
    # Tokens that will come back, and their stored rows, which are read ahead.
    resume_at: int
    read_bytes: int
    # True when the window is being rebuilt or held; else why not, if it was asked.
    replaying: bool
    reason: str
    # Of the window; None, 0 and False without one. Unix seconds.
    plan: ReplayPlan | None
    held_bytes: int
    held_until: int
    # True when an earlier prefetch began it.
    renewed: bool

    @classmethod
    def from_pb(cls, m: pb.PrefetchResponse) -> Prefetched:
        return cls(
            version=m.version,
            resume_at=m.resume_at,
            read_bytes=m.read_bytes,
            replaying=m.replaying,
            reason=m.reason,
            plan=ReplayPlan.from_pb(m.plan) if m.HasField("plan") else None,
            held_bytes=m.held_bytes,
            held_until=m.held_until,
            renewed=m.renewed,
        )


def request_of(spec: ResumeSpec, replay: bool, hold_seconds: int) -> pb.PrefetchRequest:
    if len(spec.ids) > 0:
        raise errors.InvalidArgument(
            f"prefetch: got {len(spec.ids)} ids, wanted none: a session is "
            "prefetched by its name and cut"
        )
    if replay and spec.engine_replays:
        raise errors.InvalidArgument(
            "prefetch: got replay for a resume with engine_replays, which takes no "
            "window; wanted one of them"
        )
    header = spec.header()
    return message(
        pb.PrefetchRequest,
        session=_tokens.as_session(spec.session),
        version=spec.version,
        cut=spec.cut,
        mode=header.mode,
        limits=header.limits,
        want_logits=spec.want_logits,
        replay=replay,
        hold_seconds=hold_seconds,
    )
