"""Every fix has an id, a text that can be read without its error, and a test in this folder that applies it."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "penstock"

VERBS = (
    "Add|Allow|Annotate|Ask|Attach|Begin|Call|Cast|Change|Check|Choose|Close|Compare|Convert|Copy|Count|Create|Declare|Define|Delete"
    "|Do|Drop|Fill|Filter|Forget|Free|Give|Go|Group|Install|Join|Keep|Key|Leave|Let|Look|Make|Mark|Mend|Mount|Move|Name|Open|Pass"
    "|Point|Provide|Put|Query|Raise|Read|Remove|Rename|Replace|Restart|Return|Run|Say|Send|Set|Sort|Specify|Split|Start|Stop|Store"
    "|Take|Try|Turn|Unpack|Use|Wait|Wrap|Write"
)
PROPOSES = re.compile(
    rf"""(?:^\s*|[.:;?)"'…]\s+|\n\s*)(?:(?:{VERBS})(?:\s+\w|:\s)|(?:To|For)\s+[a-z ]+[,:]\s)|\bwrite:\s|\bInstead\b"""
)
"""A sentence within a text, or a line of it, that says what to do."""


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


@functools.cache
def makers_of_texts() -> frozenset[str]:
    """The functions that are called for the text of some `Fix`."""
    return frozenset(
        inner.func.id
        for path in sorted(SRC.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fix"
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
    )


def proposals(path: Path) -> list[str]:
    """The texts of a file that say what to do and stand in no `Fix`.

    Left out are docstrings, what makes the text of a `Fix`, and the help of the command line, which is no message.
    """
    tree = ast.parse(path.read_text())
    fixes = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "Fix"]
    called = makers_of_texts()
    named = [n.id for fix in fixes for argument in fix.args for n in ast.walk(argument) if isinstance(n, ast.Name)]
    makers: list[ast.AST] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in called]
    makers += [
        n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name) and n.targets[0].id in named
    ]
    away = {id(each) for maker in makers for each in ast.walk(maker)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            away.add(id(node.value))
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ("Fix", "Option", "Argument"):
                away |= {id(each) for each in ast.walk(node)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in away]
    return [text for text in texts if isinstance(text, str) and PROPOSES.search(text)]


@pytest.mark.parametrize("path", sorted(SRC.rglob("*.py")), ids=lambda path: str(path.relative_to(SRC)))
def test_what_a_message_proposes_is_a_fix(path: Path) -> None:
    assert proposals(path) == [], "a fix is given as Fix(id, text), with a test in this folder that applies it"


def test_a_text_that_proposes_something_is_found(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        "def f(n):\n"
        '    """It works. Write: f(3)"""\n'
        '    raise PlanError(f"{n} is no number. Write: f(3)")\n'
        '    raise PlanError("no number.\\n  Use another")\n'
        '    raise PlanError("no number", fix=Fix("f.n", "Give it. Write: f(3)"))\n'
        '    raise RowError("null, and it takes none. Give a default")\n'
        '    raise JobError("no answer. For a try: nc -l")\n'
        '    log.warning("Restart it")\n'
        '    raise RowError("two rows. Mend them, or drop one")\n'
    )
    assert sorted(proposals(file)) == [
        " is no number. Write: f(3)",
        "Restart it",
        "no answer. For a try: nc -l",
        "no number.\n  Use another",
        "null, and it takes none. Give a default",
        "two rows. Mend them, or drop one",
    ]
