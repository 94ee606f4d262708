"""Every fix has an id, a text that can be read without its error, and a test in this folder that applies it."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "penstock"


def calls(folder: Path, name: str) -> list[ast.expr | None]:
    """The first argument of each call of `name` in the Python files of a folder."""
    return [
        node.args[0] if node.args else None
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", None)) == name
    ]


def constants(arguments: list[ast.expr | None]) -> list[str]:
    return [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]


def test_each_fix_is_written_with_an_id_of_its_own() -> None:
    arguments = calls(SRC, "Fix")
    ids = constants(arguments)
    assert len(ids) == len(arguments), "an id is written out where the Fix is made, so that it can be found"
    assert [id for id, times in Counter(ids).items() if times > 1] == []


def test_each_fix_is_applied_by_a_test() -> None:
    applied = set(constants(calls(Path(__file__).parent, "shown")))
    made = set(constants(calls(SRC, "Fix")))
    assert made - applied == set(), "these have no test that applies them"
    assert applied - made == set(), "these are applied and no longer exist"
