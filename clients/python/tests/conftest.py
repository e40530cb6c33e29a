# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

import torpor
import toy
from daemon import Daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    one = Daemon()
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.fixture
def client(daemon: Daemon) -> torpor.Client:
    """With the toy model registered."""
    client = daemon.connect()
    toy.register(client)
    return client


@pytest.fixture(params=["grpc", "shm"])
def any_plane(request: pytest.FixtureRequest, daemon: Daemon) -> torpor.Client:
    """A client of either plane, and nothing else."""
    client = daemon.connect(plane=request.param)
    toy.register(client)
    return client
