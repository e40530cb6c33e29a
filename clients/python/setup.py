# SPDX-License-Identifier: Apache-2.0
"""Generates torpor/v1/*_pb2.py from proto/ while the package is built.

Nothing generated is under version control, so nothing can be stale. An sdist
carries the .proto files, which it finds beside this file.
"""

import os
import shutil
from importlib import metadata
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
FILES = [
    "torpor/v1/types.proto",
    "torpor/v1/session_service.proto",
    "torpor/v1/model_service.proto",
    "torpor/v1/admin_service.proto",
]


def proto_root() -> Path:
    for root in (HERE / "proto", HERE.parent.parent / "proto"):
        if (root / FILES[0]).is_file():
            return root
    raise SystemExit(
        f"torpor: {FILES[0]} is neither beside {HERE} nor in its repository"
    )


def generate(out: Path) -> None:
    import grpc_tools
    from grpc_tools import protoc

    root = proto_root()
    well_known = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    (out / "torpor" / "v1").mkdir(parents=True, exist_ok=True)
    (out / "torpor" / "v1" / "__init__.py").write_text(
        '"""Messages of torpor.v1, generated from proto/."""\n'
    )
    words = ["protoc", f"-I{root}", f"-I{well_known}"]
    words += [f"--python_out={out}", f"--pyi_out={out}", *FILES]
    if protoc.main(words) != 0:
        raise SystemExit("torpor: protoc failed")


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        in_place = getattr(self, "editable_mode", False)
        generate(HERE / "src" if in_place else Path(self.build_lib))


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for name in FILES:
            target = Path(base_dir) / "proto" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(proto_root() / name, target)


def protobuf_requirement() -> str:
    """What grpcio-tools asks for: generated code refuses an older runtime."""
    for requirement in metadata.requires("grpcio-tools") or []:
        if requirement.startswith("protobuf"):
            return requirement
    raise SystemExit("torpor: grpcio-tools names no protobuf")


setup(
    install_requires=[
        "grpcio>=1.66",
        protobuf_requirement(),
        "numpy>=1.24",
        "xxhash>=3.0",
    ],
    cmdclass={"build_py": BuildPy, "sdist": Sdist},
)
