# SPDX-License-Identifier: Apache-2.0
"""Sessions of several processes at once: every byte is its own session's.

TORPOR_TEST_ROW_BYTES makes the sessions large: two rows of so many bytes a
token, 29,832 tokens in all.
"""

from __future__ import annotations

import multiprocessing
import os
import random

import torpor
import toy
from daemon import Daemon
from test_faults import seed
from torpor import ResumeSpec, SuspendSpec

PROCESSES = 4
EACH = 16
RESUMES = 125

ROW_BYTES = int(os.environ.get("TORPOR_TEST_ROW_BYTES", "0"))
LAYOUT = toy.wide_layout(ROW_BYTES) if ROW_BYTES else toy.LAYOUT


def length_of(salt: int) -> int:
    return 60 + salt * 37 % 900


def client_of(address: str, process: int) -> torpor.Client:
    """Half of them through shared memory alone."""
    return torpor.connect(address, plane="shm" if process % 2 else "grpc")


def put_to_sleep(address: str, process: int) -> None:
    with client_of(address, process) as client:
        for salt in range(process * EACH, (process + 1) * EACH):
            n = length_of(salt)
            ids = toy.ids_of(salt, n)
            # In two turns, so that tails are copied.
            half = n // 2
            client.suspend(
                SuspendSpec(f"s{salt}", "toy", ids[:half]),
                toy.rows_for(salt, half, LAYOUT),
                client_state=b"%d" % salt,
            )
            client.suspend(
                SuspendSpec(
                    f"s{salt}", "toy", ids[half:], expected_version=1, tokens_kept=half
                ),
                toy.rows_for(salt, n, LAYOUT),
                client_state=b"%d" % salt,
            )


def wake_at_random(address: str, process: int, one_seed: int) -> None:
    rng = random.Random(one_seed + process)
    with client_of(address, process) as client:
        for _ in range(RESUMES):
            salt = rng.randrange(PROCESSES * EACH)
            cut = rng.choice([0, rng.randrange(1, length_of(salt) + 1)])
            spec = ResumeSpec(f"s{salt}", mode="exact", cut=cut, engine_replays=True)
            woken = client.resume(spec, with_tokens=True)
            assert woken.plan.resume_at == (cut or length_of(salt))
            assert woken.tokens is not None
            assert (woken.tokens.ids == toy.ids_of(salt, length_of(salt))).all()
            assert woken.client_state == b"%d" % salt
            toy.expect_rows(woken, salt, LAYOUT)


def run_all(target: object, *arguments: object) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [
        spawn.Process(target=target, args=(arguments[0], i, *arguments[1:]))  # type: ignore[arg-type]
        for i in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [p.exitcode for p in processes] == [0] * PROCESSES


def test_64_sessions_of_4_processes_and_500_resumes(daemon: Daemon) -> None:
    client = daemon.connect()
    toy.register(client, layout=LAYOUT)
    run_all(put_to_sleep, daemon.address)
    assert client.stats().sessions == PROCESSES * EACH
    run_all(wake_at_random, daemon.address, seed())
    stats = client.stats()
    assert (stats.open_tickets, stats.open_leases) == (0, 0)
