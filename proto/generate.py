"""Generates the Python code of the protos into bcd/wire, or says what is out of date.

Run ``python proto/generate.py`` after editing a .proto; ``--check`` compares and writes nothing.
The generator is pinned in pyproject.toml to the oldest supported gRPC, because generated code
refuses to run on a runtime older than its generator.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).resolve().parent
ROOT = PROTO.parent


def generate(target: Path) -> list[Path]:
    """Compile every .proto below proto/ into ``target``; returns the files, relative to it."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("bcd/**/*.proto"))
    plugins = Path(sys.executable).parent
    command = [
        sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        f"--python_out={target}", f"--grpc_python_out={target}",
        f"--mypy_out=quiet:{target}", f"--mypy_grpc_out=quiet:{target}", *sources,
    ]  # fmt: skip
    subprocess.run(command, check=True, cwd=PROTO)
    made = sorted(path.relative_to(target) for path in target.glob("bcd/**/*_pb2*"))
    for path in made:  # a file without a service has no stubs worth keeping
        if "_pb2_grpc" in path.name and "Servicer_to_server" not in (target / path).read_text():
            (target / path).unlink()
    return [path for path in made if (target / path).exists()]


def committed() -> list[Path]:
    """The generated files in the tree, relative to the repository."""
    found = (ROOT / "bcd/wire").glob("**/*_pb2*.py*")
    return sorted(path.relative_to(ROOT) for path in found if path.suffix in (".py", ".pyi"))


def differences(fresh: Path, made: list[Path]) -> list[str]:
    """One line for each file that regenerating would add, change or remove."""
    present = committed()
    lines = [f"stale, no .proto makes it: {path}" for path in present if path not in made]
    for path in made:
        if path not in present:
            lines.append(f"missing: {path}")
        elif (ROOT / path).read_bytes() != (fresh / path).read_bytes():
            lines.append(f"differs: {path}")
    return lines


def main() -> int:
    """Exit 0 when the tree is fresh or was made so, 1 when --check finds a difference."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        made = generate(fresh)
        if "--check" in sys.argv[1:]:
            lines = differences(fresh, made)
            print("\n".join(lines) or "generated code is fresh")
            return 1 if lines else 0
        for path in committed():
            (ROOT / path).unlink()
        for path in made:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(fresh / path, ROOT / path)
    print(f"generated {len(made)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
