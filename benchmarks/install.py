"""Peers install themselves: pinned versions from the package index into `.cache/peers/`, apart from Penstock's own environment.

1. **Flink**: only the Java archives of its Python package are used. The job (`benchmarks/flink/*.java`) is compiled against them at
   first use, and again when it changes.
2. **Bytewax**: a virtual environment of its own, with a fast JSON parser.
3. **DuckDB and decoders of JSON** (polars, msgspec): one environment for all.

What is there is complete: it is built beside and renamed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache" / "peers"
JOB = Path(__file__).parent / "flink"
FLINK = "2.3.0"
BYTEWAX = ("bytewax==0.21.1", "orjson==3.13.0")
DECODERS = ("duckdb==2.0.0", "polars==2.1.0", "msgspec==0.22.0", "pyarrow==26.0.1")


class Unavailable(Exception):
    """A peer cannot be had here, and why."""


def flink() -> str:
    """The class path of Flink with the compiled job."""
    jars = made(CACHE / f"flink-{FLINK}", _flink_jars) / "pyflink" / "lib"
    sources = sorted(JOB.glob("*.java"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    classes = made(CACHE / f"flink-job-{FLINK}-{digest}", lambda folder: _compile(sources, jars, folder))
    return f"{classes}:{JOB}:{jars}/*"


def bytewax() -> Path:
    """The Python that has Bytewax."""
    version = "-".join(package.partition("==")[2] for package in BYTEWAX)
    return made(CACHE / f"bytewax-{version}", lambda folder: _environment(folder, "Bytewax", *BYTEWAX)) / "bin" / "python"


def decoders() -> Path:
    """The Python that has the decoders of JSON."""
    version = "-".join(package.partition("==")[2] for package in DECODERS)
    return made(CACHE / f"decoders-{version}", lambda folder: _environment(folder, "DuckDB", *DECODERS)) / "bin" / "python"


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make` if it is not there yet."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
            new = Path(scratch, "new")
            new.mkdir()
            make(new)
            new.rename(folder)
    return folder


def _flink_jars(folder: Path) -> None:
    print(f"fetching Flink {FLINK}, 330 MB, once", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    _run([*pip, f"apache-flink-libraries=={FLINK}"], f"Flink {FLINK} cannot be fetched")


def _compile(sources: list[Path], jars: Path, folder: Path) -> None:
    javac = shutil.which("javac")
    if javac is None:
        raise Unavailable("Flink's job cannot be compiled: there is no javac. Install a JDK, 17 or newer, not only a JRE")
    _run([javac, "-d", str(folder), "-cp", f"{jars}/*", *map(str, sources)], "Flink's job cannot be compiled")


def _environment(folder: Path, peer: str, *packages: str) -> None:
    print(f"fetching {' and '.join(packages)}, once", flush=True)
    _run([sys.executable, "-m", "venv", str(folder)], f"no virtual environment for {peer} can be made")
    # By module: scripts name the folder they were installed into, and that is renamed.
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    _run([*pip, *packages], f"{peer} cannot be fetched")


def _run(command: list[str], problem: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise Unavailable(f"{problem}: {said[-2000:]}\n  Leave this peer out by naming the others: --system continuous")
