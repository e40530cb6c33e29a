# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from pathlib import Path

from torpor import errors


def absolute(directory: str | Path) -> str:
    """A directory as the daemon may be told of it. The empty path is refused: it
    would be the working directory."""
    if not os.fspath(directory):
        raise errors.InvalidArgument("directory: got '', wanted a path")
    return os.path.abspath(directory)
