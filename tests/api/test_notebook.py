"""Cells of a notebook run again and again, on one pipeline object."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.errors import PlanError


class Notebook:
    """What IPython shows of a running cell: its number, which each run counts on, and the message that the notebook sent."""

    def __init__(self, *, says_cells: bool = True) -> None:
        self.execution_count, self._cell, self._says_cells = 0, "", says_cells

    def run(self, cell: str) -> None:
        self.execution_count, self._cell = self.execution_count + 1, cell

    def get_parent(self) -> dict[str, Any]:
        return {"header": {}, "metadata": {"cellId": self._cell} if self._says_cells else {}}


@pytest.fixture(params=[True, False], ids=["cells are known", "cells are not known"])
def notebook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    found = Notebook(says_cells=request.param)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: found))  # type: ignore[arg-type]
    return found


@pytest.fixture
def out() -> Iterator[Any]:
    with sinks.memory("nb") as sink:
        yield sink


def rows(p: pen.Pipeline, name: str = "numbers") -> pen.Stream:
    return p.read(sources.memory([{"n": 1}, {"n": 2}], schema="n bigint"), name=name)


def count(p: pen.Pipeline, out: Any, condition: str) -> list[dict[str, Any]]:
    """The cell: it keys, names a step, writes, and runs."""
    rows(p).filter(condition).key_by("n").aggregate(rows=pen.count(), name="counts").write(out)
    p.run(pen.Local())
    return out.rows()  # type: ignore[no-any-return]


def test_a_cell_that_runs_again_replaces_what_it_wrote(notebook: Notebook, out: Any) -> None:
    notebook.run("first")
    p = pen.Pipeline("nb")
    for condition, found in [("n > 0", [1, 2]), ("n > 0", [1, 2]), ("n > 1", [2])]:
        notebook.run("second")
        assert [row["n"] for row in count(p, out, condition)] == found


def test_a_cell_that_was_edited_to_write_elsewhere_does_not_write_where_it_did(monkeypatch: pytest.MonkeyPatch, out: Any) -> None:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: notebook))  # type: ignore[arg-type]
    notebook.run("first")
    p = pen.Pipeline("nb")
    for name in ("nb", "nb-2"):
        notebook.run("second")
        rows(p).write(sinks.discard(name=name))
    assert [write.name for write in p.plan().writes] == ["nb-2"]


def test_two_writes_of_one_run_of_a_cell_are_two_sinks(notebook: Notebook, out: Any) -> None:
    notebook.run("one")
    p = pen.Pipeline("nb")
    for name in ("a", "b"):
        rows(p, name).write(out)
    with pytest.raises(PlanError, match="two sinks are called 'nb'"):
        p.plan()


def test_another_cell_that_writes_to_the_same_name_is_told_so(monkeypatch: pytest.MonkeyPatch, out: Any) -> None:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: notebook))  # type: ignore[arg-type]
    notebook.run("one")
    p = pen.Pipeline("nb")
    rows(p).write(out)
    notebook.run("two")
    rows(p, "others").write(out)
    with pytest.raises(PlanError, match="two sinks are called 'nb'"):
        p.plan()


def test_where_cells_are_not_known_a_replaced_sink_is_logged(
    monkeypatch: pytest.MonkeyPatch, out: Any, caplog: pytest.LogCaptureFixture
) -> None:
    notebook = Notebook(says_cells=False)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: notebook))  # type: ignore[arg-type]
    notebook.run("?")
    p = pen.Pipeline("nb")
    rows(p).write(out)
    notebook.run("?")
    rows(p).write(out)
    (message,) = caplog.messages
    assert message.startswith("sink 'nb' takes the place of that of test_notebook.py:")


def test_a_script_that_writes_twice_from_one_line_is_told_so(out: Any) -> None:
    p = pen.Pipeline("nb")
    for name in ("a", "b"):
        rows(p, name).write(out)
    with pytest.raises(PlanError, match="two sinks are called 'nb'"):
        p.plan()
