"""`user_of_states.py` as mypy --strict sees it, and as it runs."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[2]
USER = Path(__file__).with_name("user_of_states.py")


def said(path: Path) -> list[tuple[int, str]]:
    """What mypy says of a user's file: (line, revealed type), or (line, "error: " and its code)."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--config-file", ""]
    done = subprocess.run(
        [*command, "--cache-dir", str(ROOT / ".mypy_cache" / "users"), str(path)], capture_output=True, text=True, cwd=path.parent
    )
    assert not done.stderr, done.stderr
    found = []
    for line in done.stdout.splitlines():
        number, what = re.fullmatch(r"[^:]+:(\d+): (.*)", line).groups()  # type: ignore[union-attr]
        if revealed := re.fullmatch(r'note: Revealed type is "(.*)"', what):
            found.append((int(number), re.sub(r"\b[\w.]+\.(?=\w)", "", revealed[1])))
        elif what.startswith("error: "):
            found.append((int(number), f"error: {what.rpartition('[')[2].rstrip(']')}"))
    return sorted(found)


def expected(path: Path) -> list[tuple[int, str]]:
    """The same, as the comments of the file say it."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    return sorted((token.start[0], token.string[2:]) for token in tokens if token.type == tokenize.COMMENT)


def test_a_state_of_int_gives_an_int_and_takes_nothing_else() -> None:
    assert said(USER) == expected(USER)


def test_what_a_type_checker_reads_is_what_python_runs() -> None:
    found = runpy.run_path(str(USER))
    assert {"Values", "Collections", "Folded", "Sides"} <= found.keys()
