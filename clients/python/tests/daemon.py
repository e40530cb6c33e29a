# SPDX-License-Identifier: Apache-2.0
"""A torpord process over a directory of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import torpor

ROOT = Path(__file__).resolve().parents[3]


def program(name: str) -> str:
    """TORPOR_BIN is the directory with torpord and torpor."""
    where = Path(os.environ.get("TORPOR_BIN") or ROOT / "build/release/bin")
    path = where / name
    if not path.is_file():
        raise FileNotFoundError(f"{path}: build it, or set TORPOR_BIN")
    return str(path)


class Daemon:
    """Serves from `start` to `stop` or `kill`; the directory stays between."""

    def __init__(self, config: str = "") -> None:
        # Short: a socket's path has at most 107 bytes.
        self.dir = Path(tempfile.mkdtemp(prefix="torpor-py-"))
        (self.dir / "torpord.toml").write_text(
            f"maintain_every_ms = 50\n{config}\n"
            "[store]\nmap_bytes = 2147483648\nmax_bytes = 1073741824\n"
        )
        self.listen = [f"unix://{self.dir}/run/s"]
        self._process: subprocess.Popen[bytes] | None = None
        self._connected: list[torpor.Client] = []

    def only_tenants(self, operator: str, **others: str) -> None:
        """Wants a token of every call: the operator's, or another tenant's."""
        config = self.dir / "torpord.toml"
        text = "require_credential = true\n" + config.read_text()
        for number, (name, token) in enumerate({"op": operator, **others}.items(), 1):
            digest = hashlib.sha256(token.encode()).hexdigest()
            text += f'\n[[tenant]]\nname = "{name}"\nnumber = {number}\n'
            text += f'operator = {"true" if number == 1 else "false"}\n'
            text += f'token_hashes = ["sha256:{digest}"]\n'
        config.write_text(text)

    @property
    def address(self) -> str:
        return self.listen[0]

    @property
    def data(self) -> Path:
        return self.dir / "data"

    def start(self) -> None:
        words = [program("torpord"), "--config", str(self.dir / "torpord.toml")]
        words += ["--data-dir", str(self.data), "--threads", "1"]
        for address in self.listen:
            words += ["--listen", address]
        with open(self.dir / "log", "ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.dir / "log").read_text())
            time.sleep(0.02)

    def _serves(self) -> bool:
        try:
            with torpor.connect(self.address) as client:
                return client.healthy(timeout=5)
        except torpor.Unavailable:
            return False

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9, and gone when it returns."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=60)
            self._process = None

    def close(self) -> None:
        for client in self._connected:
            client.close()
        self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def connect(self, **options: object) -> torpor.Client:
        """A client that is closed with the daemon."""
        client = torpor.connect(self.address, **options)  # type: ignore[arg-type]
        self._connected.append(client)
        return client

    def torpor(self, *words: str) -> str:
        """A command of `torpor` to this daemon."""
        done = subprocess.run(
            [program("torpor"), "--server", self.address, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
