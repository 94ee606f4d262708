"""`pen.Restore` on the command line: flags as its arguments, and a proposed call as flags.

An error proposes what to write in Python. Whoever runs `penstock run` has no place for that, so the same is told as flags.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator, Sequence

from penstock.errors import ConfigError, Fix
from penstock.runners.restoring import Restore

__all__ = ["flags_text", "restore_of"]

CALL = "pen.Restore("


def restore_of(
    start: str, rename: Sequence[str], drop: Sequence[str], start_empty: Sequence[str] = (), *, start_over_time: bool
) -> Restore:
    """What the flags of `penstock run` say."""
    names = {}
    for each in rename:
        old, equals, new = each.partition("=")
        if not (old and equals and new):
            raise ConfigError(
                f"--rename {each!r} does not say what is renamed to what", fix=Fix("cli.rename", "Write: --rename old=new")
            )
        names[old] = new
    return Restore(start, rename=names, drop=tuple(drop), start_over_time=start_over_time, start_empty=tuple(start_empty))


def flags_text(fix: Fix | None) -> str:
    """The flags for each call of `pen.Restore` that a fix proposes; nothing if it proposes none."""
    return "" if fix is None else ", or ".join(" ".join(map(shlex.quote, _flags(call))) for call in _calls(fix.text))


def _calls(text: str) -> Iterator[ast.Call]:
    """Each call in a text that is Python from its beginning to some bracket."""
    start = text.find(CALL)
    while start >= 0:
        ends = (place + 1 for place in range(start, len(text)) if text[place] == ")")
        call = next(filter(None, (_parsed(text[start:end]) for end in ends)), None)
        if call is not None:
            yield call
        start = text.find(CALL, start + 1)


def _parsed(code: str) -> ast.Call | None:
    try:
        tree = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    return tree if isinstance(tree, ast.Call) else None


def _flags(call: ast.Call) -> Iterator[str]:
    path = ast.literal_eval(call.args[0])
    if path != "latest":
        yield from ("--restore", path)
    for keyword in call.keywords:
        flag, value = f"--{(keyword.arg or '').replace('_', '-')}", ast.literal_eval(keyword.value)
        if value is True:
            yield flag
        elif isinstance(value, dict):
            for old, new in value.items():
                yield from (flag, f"{old}={new}")
        else:
            for name in value:
                yield from (flag, name)
