"""How a test applies a fix: it brings the error about, reads the fix as a user would, and does what it says.

`shown` is the text of a fix as it was printed, under its id; `code_of` is what stands behind "Write: ". A test in this folder
calls `shown` with an id that is written out, so that `test_fixes` can tell which fixes have one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import PenstockError


def shown(id: str, broken: Callable[[], object]) -> str:
    """What `broken`, which must fail, is told to do."""
    with pytest.raises(PenstockError) as caught:
        broken()
    error = caught.value
    assert error.fix is not None, f"no fix is proposed by: {error}"
    assert error.fix.id == id, f"the fix is {error.fix.id}, of: {error}"
    first, second, *_ = str(error).splitlines()
    assert second == f"  {error.fix.text.splitlines()[0]}", "the fix is the second line"
    assert "Write:" not in first
    return error.fix.text


def code_of(text: str) -> list[str]:
    """The alternatives that a fix offers as code: `Write: a, or b` offers two."""
    _, found, code = text.partition("Write: ")
    assert found, f"there is no code in {text!r}"
    return re.split(r",? or (?=\.?\w+[=(.])", code)


def argument(text: str) -> list[Any]:
    """The values of code like `delay="1s"`: what the user would write behind the name."""
    return [evaluate(code.partition("=")[2]) for code in code_of(text)]


def evaluate(code: str, **names: Any) -> Any:
    """The value of an expression as it stands in a user's file, which sees the names of the calling test too."""
    frame = inspect.currentframe()
    seen: dict[str, Any] = {}
    if frame is not None and frame.f_back is not None:
        seen = {**frame.f_back.f_globals, **frame.f_back.f_locals}
    return eval(code, {**seen, "pen": pen, "col": pen.col, "sources": sources, "sinks": sinks, **names})
