"""Getting this very package, and the user's pipeline, to where tasks run.

User functions and plans travel by Spark's own closures, and only there: nothing on our own sockets is ever unpickled. What a
closure refers to by name (this package) must be the same on both sides, to the byte: two versions that half understand each other
would corrupt state quietly.

1. On this machine (`local[n]`) workers get the driver's `sys.path`, so that what the driver can import they can too: an editable
   install, `PYTHONPATH=src`, the folder of a test or a script.
2. Elsewhere the package travels as a zip, once per Spark application, and comes before what is installed there.
3. Each worker says who it is (`identity`), and `check_identity` compares before any row moves.
4. Workers that cannot say it, since their Python is not there, is another one, lacks a package or does not get that far, are told of
   by Spark, in pages of text. `worker_trouble` finds in them what is wrong, with which interpreter and on which host. The next attempt
   would end in the same way.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import re
import shutil
import socket
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from penstock.errors import Fix, RunnerError
from penstock.passing import text_of
from penstock.runners.spark.session import is_local

__all__ = ["check_identity", "check_workers", "identity", "place", "ship", "worker_trouble"]

_shipped: set[str] = set()  # applications that have the zip


def ship(spark: Any) -> str:
    """Make this package importable in the workers of a session. Returns the identity they must answer with."""
    context = spark.sparkContext
    if is_local(spark):
        # Part of what makes two worker pools different, so workers with another path are not reused.
        context.environment["PYTHONPATH"] = os.pathsep.join(own_path())
        return identity(by_content=False)
    if context.applicationId not in _shipped:
        folder = tempfile.mkdtemp(prefix="penstock-ship-")  # Spark serves it from there to executors that come later
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        context.addPyFile(str(package_zip(Path(folder) / f"penstock-{digest()[:12]}.zip")))
        _shipped.add(context.applicationId)
    return identity(by_content=True)


def own_path() -> list[str]:
    """The entries of `sys.path` that a bare interpreter would not have, made absolute."""
    bare = {os.path.realpath(p) for p in (*sysconfig.get_paths().values(), os.path.dirname(os.__file__)) if p}
    bare |= {os.path.realpath(p) for p in sys.path if p.endswith(("lib-dynload", ".zip"))}
    mine = [os.path.abspath(p or os.curdir) for p in sys.path]
    package = str(Path(__file__).parents[3])
    return list(dict.fromkeys([p for p in mine if os.path.realpath(p) not in bare and os.path.exists(p)] + [package]))


def package_zip(path: Path) -> Path:
    """The sources of this package, as one file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sources():
            archive.writestr(zipfile.ZipInfo(f"penstock/{name}"), content)
    return path


def identity(*, by_content: bool) -> str:
    """Which Penstock and which Python this process runs.

    Args:
        by_content: by what the sources say; else by where they are, for processes that share a file system.
    """
    from penstock import __version__

    packages = {"Python": sys.version, "numpy": np.__version__, "pyarrow": pa.__version__, "xxhash": xxhash.VERSION}
    versions = ", ".join(f"{name} {'.'.join(version.split()[0].split('.')[:2])}" for name, version in packages.items())
    which = digest()[:16] if by_content else str(Path(__file__).resolve().parents[2])
    return f"penstock {__version__} ({which}) on {versions}"


def place() -> str:
    """The interpreter of this process, and its host."""
    return f"{sys.executable} on {socket.gethostname()}"


def check_identity(ours: str, theirs: str, worker: str) -> None:
    """RunnerError, naming both, unless they are the same. `worker`: its `place`."""
    if ours != theirs:
        raise RunnerError(
            f"driver and workers run different code. Driver: {ours}, by {place()}. Worker: {theirs}, by {worker}",
            fix=same_python(),
        )


def same_python() -> Fix:
    """How workers come to run what the driver runs."""
    return Fix(
        "workers.python",
        "Install the driver's packages in the same versions on every host, and start Spark with that Python:"
        f" PYSPARK_PYTHON={sys.executable}",
    )


def worker_trouble(text: str, spark: Any) -> RunnerError | None:
    """What keeps workers from starting, of the text of a failed Spark job; None if it is something else."""
    unknown = socket.gethostname() if is_local(spark) else "a worker's host"  # Spark does not say it of barrier tasks
    host = next(iter(re.findall(r"\(TID \d+\) \(([^ )]+) executor", text)), unknown)
    python = f"{spark.sparkContext.pythonExec} on {host}"
    if found := re.search(r'Cannot run program "([^"\n]+)"[^\n]*?(?:error[=:] ?\d+,? ?\(?([^\n)]+)|$)', text, re.MULTILINE):
        return RunnerError(
            f"the workers' Python cannot be started: {found[1]} on {host}: {found[2] or 'no reason'}", fix=same_python()
        )
    if found := re.search(r"PYTHON_VERSION_MISMATCH\][^\n]*?: ([\d.]+) than that in driver: ([\d.]+)", text):
        return RunnerError(
            f"driver and workers run different Pythons. Driver: {found[2]}, by {place()}. Worker: {found[1]}, by {python}",
            fix=same_python(),
        )
    if found := re.search(r"\b(ModuleNotFoundError|ImportError): ([^\n]+)", text):
        return RunnerError(
            f"the workers' Python cannot import what it needs: {python}: {found[0].rstrip(')')}", fix=same_python()
        )
    if found := re.search(r"Error from python worker:\s*([^\n]+)", text):
        return RunnerError(f"the workers' Python ends when it is started: {python}: {found[1]}", fix=same_python())
    if found := re.search(r"reading the port number from \S+ stdout(?:[^\n]*? with code: (\d+))?", text):
        code = f", with code {found[1]}" if found[1] else ""
        return RunnerError(f"the workers' Python ends when it is started, without a word{code}: {python}", fix=same_python())
    if found := re.search(r"Bad data in \S+ standard output[^\n]*:\s*-?\d+ \(0x([0-9a-fA-F]{1,8})\)", text):
        printed = bytes.fromhex(found[1].zfill(8)).decode("latin-1")
        return RunnerError(
            f"the workers' Python prints something when it is started, where Spark reads a number: {python}: {printed!r} …",
            fix=same_python(),
        )
    return None


def check_workers(spark: Any, tasks: int = 1) -> None:
    """Run a small job in which workers say who they are. For runners whose tasks have no greeting of their own.

    It is a job as those of epochs are: Spark would keep other workers, for other kinds of jobs, beside the ones that are needed.
    """
    ours = ship(spark)
    by_content = not is_local(spark)

    def who(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            found = [identity(by_content=by_content), place()]
            yield pa.RecordBatch.from_arrays([pa.array([text]) for text in found], ["who", "place"])

    try:
        found = spark.range(0, tasks, 1, tasks).mapInArrow(who, "who string, place string").collect()
    except Exception as error:
        trouble = worker_trouble(str(error), spark)
        raise trouble or RunnerError(f"workers of this Spark cannot run Penstock: {job_error(error)}") from None
    for theirs, worker in found:
        check_identity(ours, theirs, worker)


def job_error(error: BaseException) -> str:
    """The part of a failed Spark job's text that says what was wrong."""
    text = text_of(error).removeprefix(f"{type(error).__name__}: ")
    for line in text.splitlines():
        found = line.strip()
        if "PYTHON_VERSION_MISMATCH" in found or found.startswith(("ModuleNotFoundError", "ImportError")):
            return found
    lines = [line.removeprefix(": ") for line in text.strip().splitlines()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        del lines[0]  # Py4J's, which names an object of its own
    return lines[0] if lines else type(error).__name__


@functools.cache
def digest() -> str:
    """A checksum of all sources of the package this process imported."""
    total = hashlib.sha256()
    for name, content in sources():
        total.update(f"{name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def sources() -> Iterator[tuple[str, bytes]]:
    """Every source file of the package, in order; from a folder or from a zip."""
    yield from sorted(walk(files("penstock"), ""))


def walk(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
    """The files below a folder."""
    for entry in folder.iterdir():
        name = f"{prefix}{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from walk(entry, f"{name}/")
        elif entry.name.endswith((".py", ".typed")):
            yield name, entry.read_bytes()
