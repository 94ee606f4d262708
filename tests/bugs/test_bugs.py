"""Programs that users wrote and that went wrong, each with the lines that it must print.

`NAME.py` is the program. `NAME.out` is a transcript: a line `$ local 3` starts the program with these arguments, and the lines
below it must stand in its output, in this order; other lines may stand between them. `…` stands for any text within a line, and
`! text` for a text that must not stand anywhere in the output. A start that needs Spark says so: `# spark` behind the arguments; one
that shows on another runner what a first one shows says `# spark full`, and belongs to `make conformance`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITHIN_S = 120
FULL = os.environ.get("PENSTOCK_CONFORMANCE") == "full"


@dataclass(frozen=True)
class Run:
    """One start of a program, and what is said of its output."""

    program: str
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    absent: tuple[str, ...]
    spark: bool
    full: bool


def runs(transcript: Path) -> list[Run]:
    found = []
    for part in re.split(r"^\$ ?", transcript.read_text(), flags=re.MULTILINE)[1:]:
        first, *rest = part.splitlines()
        arguments, _, mark = first.partition("#")
        wanted = [line for line in rest if line.strip() and not line.startswith("! ")]
        absent = [line[2:] for line in rest if line.startswith("! ")]
        marks = mark.split()
        assert {*marks} <= {"spark", "full"}, f"{transcript.name}: marks are spark and full, not {mark!r}"
        found.append(
            Run(transcript.stem, tuple(arguments.split()), tuple(wanted), tuple(absent), "spark" in marks, "full" in marks)
        )
    return found


def missing(lines: tuple[str, ...], output: str) -> str | None:
    """The first of these lines that does not stand in the output behind the ones before it."""
    left = iter(output.splitlines())
    for line in lines:
        pattern = ".*".join(map(re.escape, line.split("…")))
        if not any(re.fullmatch(pattern, have) for have in left):
            return line
    return None


ALL = [run for transcript in sorted(HERE.glob("*.out")) for run in runs(transcript)]


def test_each_program_has_a_transcript() -> None:
    programs = {path.stem for path in HERE.glob("*.py")} - {"__init__", "test_bugs"}
    assert programs == {run.program for run in ALL}


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(
            run, id="-".join([run.program, *run.arguments]), marks=[pytest.mark.spark, pytest.mark.slow] if run.spark else []
        )
        for run in ALL
        if FULL or not run.full
    ],
)
def test_the_program_prints_what_it_must(run: Run, tmp_path: Path) -> None:
    assert run.lines or run.absent, "a transcript without lines holds for any program"
    done = subprocess.run(
        [sys.executable, str(HERE / f"{run.program}.py"), *run.arguments],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUTF8": "1", "COLUMNS": "1000"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
    )
    assert missing(run.lines, done.stdout) is None, done.stdout
    for text in run.absent:
        assert text not in done.stdout, done.stdout
