"""The state of one step, read from a savepoint or from the storage of a job: for another pipeline to start from.

    limits.process(Limits(), initial={"total": pen.from_savepoint("/backup/before-upgrade", step="counts", state="total")}, …)

Which state is meant, what columns it has and in which files it is, is looked up once, where the pipeline is written. That travels
with the plan, and each task reads the files for itself. So tasks agree on what they read, also if the other job goes on; then its
files may be gone when they are to be read, which is an error. A savepoint stays.

A running aggregate keeps all its results in one table. Here each result is a state by its own name: `total.sum` of the table is
`value.sum` of the state `total`. A reduce keeps a row: its `row.id` is `id` here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.checkpoints.apart import Lists
from penstock.checkpoints.envelope import Json
from penstock.checkpoints.log import Log
from penstock.checkpoints.manifest import Manifest, OperatorEntry, StateEntry
from penstock.checkpoints.repository import SAVEPOINT, checked_file, read_savepoint
from penstock.checkpoints.storage import LocalStore, Store, open_store
from penstock.errors import Fix, MissingError, RestoreError
from penstock.state.runfile import OP, Handle
from penstock.state.spec import StateSpec
from penstock.state.table import KeyedTable

__all__ = ["Saved", "from_savepoint"]

VALUE, CHUNKS, COUNTS = "value", "chunks", "counts"

Names = dict[str, str]
"""The columns of a table that count, and what they are called here."""


def from_savepoint(path: str | Path, *, step: str, state: str | None = None) -> Saved:
    """A state of another job, as values to start from: `initial={"n": pen.from_savepoint(path, step="counts", state="n")}`.

    Args:
        path: a folder that `job.savepoint` wrote, or the folder of a stopped job in its storage: `"checkpoints/ad-counts"`.
        step: the name of the step there: a process function, a running aggregate or a reduce.
        state: the name of the state as declared, or of the result of an aggregate. May be left out if there is only one.
    """
    store = open_store(path)
    manifest = _manifest(store)
    steps = {operator.name: operator for operator in manifest.operators if operator.states}
    if step not in steps:
        raise RestoreError(
            f"{_where(store, manifest)} has no step {step!r}. Its steps with state: {_list(steps)}{_close(step, steps)}"
        )
    found = _states(steps[step])
    if not found:
        raise RestoreError(f"step {step!r} in {_where(store, manifest)} keeps nothing that another step could start from")
    if state is None and len(found) == 1:
        (state,) = found
    if state is None:
        raise RestoreError(
            f"step {step!r} has several states: {_list(found)}",
            fix=Fix("saved-state.which", f"Say which. Write: state={next(iter(found))!r}"),
        )
    if state not in found:
        raise RestoreError(
            f"step {step!r} in {_where(store, manifest)} has no state {state!r}. Its states: {_list(found)}{_close(state, found)}"
        )
    entry, names = found[state]
    about = f"state {state!r} of step {step!r} in {store.url}"
    beside = {each.name: each for each in steps[step].states if each.name in (f"{state}-{CHUNKS}", f"{state}-{COUNTS}")}
    apart = {name.rpartition("-")[2]: (_columns(each, store), each.handles) for name, each in beside.items() if each.handles}
    return Saved(about, store.url, _columns(entry, store), names, entry.handles, manifest.max_parallelism, apart)


@dataclass(frozen=True, slots=True)
class Saved:
    """One state as it was saved. See `plan.inherited` for what it is good for."""

    about: str
    url: str
    table: tuple[pa.Schema, pa.Schema] | None
    """The key and value columns of its table; None if it has no file."""
    names: Names
    handles: tuple[Mapping[str, Json], ...]
    max_parallelism: int
    apart: Mapping[str, tuple[Any, tuple[Mapping[str, Json], ...]]] = field(default_factory=dict)
    """The tables beside it with what does not stand in its rows: their columns and handles."""

    @property
    def columns(self) -> tuple[pa.Schema, pa.Schema] | None:
        """Its key columns and its value columns."""
        if self.table is None:
            return None
        keys, values = self.table
        return keys, pa.schema([field.with_name(self.names[field.name]) for field in values if field.name in self.names])

    def read(self, groups: range, max_parallelism: int) -> Iterator[pa.RecordBatch]:
        """Its rows: at least those of the key groups of a job with so many of them."""
        if self.table is None:
            return
        keys, values = self.table
        wanted = groups if max_parallelism == self.max_parallelism else range(self.max_parallelism)
        route = len(keys)
        rows_of = self._scan((keys, values), self.handles, wanted, route)
        beside = {name: self._scan(columns, handles, wanted, route) for name, (columns, handles) in self.apart.items()}
        counted = CHUNKS in self.apart and COUNTS in self.apart and len(self.apart[COUNTS][0][1]) > 0
        lists = Lists.of(keys.names, beside[CHUNKS], beside[COUNTS] if counted else None) if CHUNKS in beside else None
        columns = {
            **{name: name for name in keys.names},
            **{name: self.names[name] for name in values.names if name in self.names},
        }
        for rows in rows_of:
            picked = rows.select(list(columns)).rename_columns(list(columns.values()))
            if lists is not None:
                at = len(keys)  # a list is the only column of its aggregate
                picked = picked.set_column(
                    at, picked.schema.field(at), lists.put_back(rows.select(keys.names), picked.column(at))
                )
            yield picked

    def _scan(
        self, columns: tuple[pa.Schema, pa.Schema], handles: tuple[Mapping[str, Json], ...], groups: range, route: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a table."""
        keys, values = columns
        try:
            stored = [Handle.from_json(handle) for handle in handles]
            spec = StateSpec("saved", keys, values, route)
            table = KeyedTable.open(spec, groups, self.max_parallelism, stored, open_store(self.url), lasting=False)
        except MissingError as error:
            raise RestoreError(
                f"{self.about} cannot be read: {error}",
                fix=Fix("saved-state.gone", "If its job has gone on since, take a savepoint of it, and start from that"),
            ) from error
        return table.scan()


def _manifest(store: Store) -> Manifest:
    if store.read(SAVEPOINT) is None:
        newest = Log(store).read_newest()
        if newest is not None:
            return newest.manifest
        assert isinstance(store, LocalStore), "there are only local stores"
        jobs = sorted(path.parent.name for path in store.root.glob("*/log"))
        if jobs:
            raise RestoreError(
                f"{store.url} is a storage, with a folder for each job: {_list(jobs)}",
                fix=Fix("saved-state.job", f"Give the folder of one of them. Write: {str(store.root / jobs[0])!r}"),
            )
    return read_savepoint(store)


def _states(operator: OperatorEntry) -> dict[str, tuple[StateEntry, Names]]:
    """The states of a step that somebody else can understand, and which columns they are."""
    found: dict[str, tuple[StateEntry, Names]] = {}
    keys = {column for column, _ in operator.keys}
    for state in operator.states:
        columns = [column.name for column in state.schema if column.name not in keys]
        if state.kind == "timer" or "-" in state.name:
            continue  # what no user declared has a hyphen in its name
        if operator.kind == "aggregate":
            for column in columns:
                result, _, kind = column.rpartition(".")
                found.setdefault(result, (state, {}))[1][column] = f"{VALUE}.{kind}"
        elif operator.kind == "reduce":  # its row has the key columns once more
            row = {column: column.removeprefix("row.") for column in columns}
            found[state.name] = state, {column: name for column, name in row.items() if name not in keys}
        else:
            found[state.name] = state, {column: column for column in columns}
    return found


def _columns(state: StateEntry, store: Store) -> tuple[pa.Schema, pa.Schema] | None:
    """The key and value columns of a state, by one of its files: a manifest has their types only as text."""
    if not state.handles:
        return None
    with pa.ipc.open_file(checked_file(store, state.handles[0], contents=True)) as file:
        fields = list(file.schema)
    op = [field.name for field in fields].index(OP)
    return pa.schema(fields[2:op]), pa.schema(fields[op + 1 :])


def _where(store: Store, manifest: Manifest) -> str:
    return f"{store.url} (pipeline {manifest.pipeline!r})"


def _list(names: Mapping[str, object] | list[str]) -> str:
    return ", ".join(names) or "none"


def _close(name: str, names: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f". Did you mean {close[0]!r}?" if close else ""
