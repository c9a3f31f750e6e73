"""Generates the Python code of services/wire/*.proto into the tree, where git ignores it.

The include root is the repository root, so generated imports are absolute
(`from services.wire import ps_pb2`). A file whose content did not change is left alone: its time
stamp keeps incremental tools quiet. Knows nothing of what the messages mean.
Run it with an interpreter that has grpcio-tools and mypy-protobuf.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIRE = Path("services") / "wire"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def compile_protos(protos: list[Path], out: Path) -> None:
    """Runs protoc over `protos`, relative to the root. CalledProcessError: protoc refused one."""
    # mypy-protobuf's plugin is a console script of the interpreter that runs this file.
    scripts = sysconfig.get_path("scripts")
    env = {**os.environ, "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")])}
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", "-I."),
        *(f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}"),
        f"--mypy_grpc_out=quiet,only_sync:{out}",
        *(proto.as_posix() for proto in protos),
    ]
    subprocess.run(command, cwd=ROOT, env=env, check=True)


def publish(fresh: Path, wire: Path) -> list[str]:
    """Moves changed files from `fresh` to `wire`, drops those without a proto; names touched."""
    touched = []
    made = {path.name: path.read_bytes() for path in fresh.iterdir()}
    for name, content in sorted(made.items()):
        target = wire / name
        if not target.exists() or target.read_bytes() != content:
            # Replaced in one move: another process may be importing the old file right now.
            (fresh / name).replace(target)
            touched.append(name)
    for pattern in GENERATED:
        for path in wire.glob(pattern):
            if path.name not in made:
                path.unlink()
                touched.append(path.name)
    return touched


def main() -> int:
    protos = sorted(path.relative_to(ROOT) for path in (ROOT / WIRE).glob("*.proto"))
    if not protos:
        sys.stderr.write(f"gen_protos: no .proto file in {WIRE}\n")
        return 1
    # Beside the target, so that the final move stays inside one file system.
    with tempfile.TemporaryDirectory(dir=ROOT / WIRE, prefix=".gen-") as scratch:
        try:
            compile_protos(protos, Path(scratch))
        except subprocess.CalledProcessError as failed:
            sys.stderr.write(f"gen_protos: protoc failed with exit code {failed.returncode}\n")
            return 1
        touched = publish(Path(scratch) / WIRE, ROOT / WIRE)
    sys.stdout.write(f"protos: {len(protos)} files, {len(touched)} generated files changed\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
