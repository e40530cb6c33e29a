# SPDX-License-Identifier: Apache-2.0
"""The code of docs/PYTHON.md runs as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from daemon import ROOT, Daemon


def test_the_page_runs_as_written(daemon: Daemon) -> None:
    page = (ROOT / "docs/PYTHON.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    # As README has it, with a shorter prompt.
    daemon.torpor("model", "add", str(ROOT / "models/nano"), "--name", "nano")
    words = ["--session", "hello", "--model", "nano", "--prompt", "hello " * 100]
    daemon.torpor("run", *words, "--generate", "20")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=ROOT,
        env={**os.environ, "TORPOR_SERVER": daemon.address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "485 loaded, 15 to replay" in done.stdout
