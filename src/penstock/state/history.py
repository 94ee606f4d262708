"""A state as its history: a list of immutable runs, newest first, and how it gets to disk while work goes on.

Three parties meet here. The task changes its state and, at a barrier, *freezes* it: what changed becomes one more
run, in memory. A writer *stores* the frozen list: it writes the runs that are not on disk yet and now and then merges
some. Later the task is told that a frozen list is *stored*, and refers to the files from then on.

1. A `Frozen` is complete (all runs of the state, not a difference) and immutable. So it does not matter whether an
   earlier one was stored, failed, or is still on its way: each can be stored alone, and the latest one counts.
2. Runs are numbered as they are frozen. `stored(frozen)` replaces exactly the runs numbered up to the frozen's own
   number; what was frozen later stays pending. News about a frozen older than the last one stored is ignored.
   `replace` counts as news too: nothing that was frozen before it can bring back the runs it has forgotten.
3. A run whose store failed stays pending, and so is part of the next frozen.
4. `store` touches only the frozen and files, so it may run in another thread. At most one merge per call, and only
   with more than `RUNS_MAX` runs; like is merged with like (see `choose_merge`), so each row is rewritten a number of
   times that grows with the logarithm of the state, not with the epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from penstock.state.columns import fixed_values
from penstock.state.runfile import Files, Handle, Kind, checksum, read_run, remember_validated
from penstock.state.runs import Run, open_run

__all__ = ["RUNS_MAX", "Floor", "Frozen", "History", "choose_merge", "store"]

RUNS_MAX = 8
MERGE_BYTES_MAX = 1 << 30
"""A merge holds its rows in memory, and Arrow's string columns end at 2 GiB."""

Floor = tuple[int, int, int]
"""First group, last group, and the time up to which their timers have fired."""


class Merge(Protocol):
    """Makes one sorted batch of several runs, newest first; `oldest` if no older run holds the same groups."""

    def __call__(self, runs: Sequence[Run], *, oldest: bool) -> pa.RecordBatch: ...


@dataclass(frozen=True, eq=False, slots=True)
class Frozen:
    """All runs of one state at one moment. `floors` is empty but for timers; `searched`: whether keys will be looked up in its runs."""

    epoch: int
    kind: Kind
    schema: pa.Schema
    number: int
    runs: tuple[Run, ...]
    merge: Merge
    floors: tuple[Floor, ...] = ()
    searched: bool = False
    opened: dict[Handle, Run] = field(default_factory=dict, repr=False)
    """The runs `store` wrote, mapped from their files, left for `History.stored`: so the task needs no IO there."""


class History:
    """The runs of one state, on disk (`base`) and not yet (`pending`)."""

    def __init__(self, base: Iterable[Run] = ()) -> None:
        self._base: list[Run] = list(base)
        self._pending: list[tuple[int, Run]] = []
        self._number = 0
        self._stored = 0

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, newest first."""
        return (*(run for _, run in self._pending), *self._base)

    def append(self, run: Run) -> None:
        """Add the newest run."""
        self._number += 1
        self._pending.insert(0, (self._number, run))

    def replace(self, runs: Sequence[Run]) -> None:
        """These say everything: forget all others."""
        self._number += 1
        self._base = []
        self._pending = [(self._number, run) for run in runs]
        self._stored = self._number

    def drop(self, dead: Callable[[Run], bool]) -> None:
        """Forget runs that no longer say anything."""
        self._base = [run for run in self._base if not dead(run)]
        self._pending = [(number, run) for number, run in self._pending if not dead(run)]

    def freeze(
        self, epoch: int, *, kind: Kind, schema: pa.Schema, merge: Merge, floors: tuple[Floor, ...] = (), searched: bool = False
    ) -> Frozen:
        """The list as it is now."""
        return Frozen(epoch, kind, schema, self._number, self.runs, merge, floors, searched)

    def stored(self, frozen: Frozen, handles: Sequence[Handle]) -> bool:
        """Refer to the files from now on. False if a later frozen has been stored already."""
        if frozen.number < self._stored:
            return False
        assert frozen.number <= self._number, "stored what was never frozen here"
        known = {run.handle: run for run in (*frozen.runs, *self._base) if run.handle is not None}
        known |= frozen.opened
        self._base = [known[handle] for handle in handles]
        self._pending = [(number, run) for number, run in self._pending if number > frozen.number]
        self._stored = frozen.number
        return True


def store(frozen: Frozen, files: Files, name: Callable[[], str], merged_some: Callable[[], None] = lambda: None) -> list[Handle]:
    """Write what is not on disk yet, and return the handles of the whole state, newest first.

    If it raises, nothing refers to what it wrote; the state is unharmed and the next frozen holds everything again.

    Args:
        name: Gives a relative path that was never used before.
        merged_some: Is called when runs were merged, before the result is written.
    """
    runs = list(frozen.runs)
    chosen = choose_merge([run.rows for run in runs], [run.nbytes for run in runs])
    if chosen is not None:
        group = runs[chosen.start : chosen.stop]
        first, last = min(run.first_group for run in group), max(run.last_group for run in group)
        older = runs[chosen.stop :]
        oldest = all(run.last_group < first or run.first_group > last for run in older)
        merged = frozen.merge(group, oldest=oldest)
        runs[chosen.start : chosen.stop] = [Run.of(merged)] if merged.num_rows else []
        merged_some()
    return [_write(run, frozen, files, name()) if run.handle is None or _to_sort(run, frozen) else run.handle for run in runs]


def _to_sort(run: Run, frozen: Frozen) -> bool:
    """Whether its file is written again, in order: else each of many tasks that search it would have to sort it first."""
    return frozen.searched and not run.in_order


def _write(run: Run, frozen: Frozen, files: Files, path: str) -> Handle:
    timers, searched = frozen.kind == "timers", frozen.searched
    pieces = run.encoded(searched=searched)
    due = fixed_values(run.batch.column(1)) if timers else None
    handle = Handle(
        path=path,
        kind=frozen.kind,
        first_group=run.first_group,
        last_group=run.last_group,
        rows=run.rows,
        bytes=sum(piece.size for piece in pieces),
        checksum=checksum(*pieces),
        min_due=None if due is None else int(due[0]),
        max_due=None if due is None else int(due[-1]),
    )
    files.write(path, *pieces, read_soon=searched or timers)
    # These very bytes were valid a moment ago: no need to read them back only to check them.
    remember_validated(handle)
    frozen.opened[handle] = (
        reopen(handle, files, frozen.schema) if timers else run.written(handle, files, frozen.schema, searched=searched)
    )
    return handle


def reopen(handle: Handle, files: Files, schema: pa.Schema) -> Run:
    """A run of a stored file. Keyed runs are opened at once; timers only when their time comes."""
    if handle.kind == "run":
        return open_run(handle, files, schema)
    return Run(lambda run: read_run(handle, files, schema), handle.first_group, handle.last_group, handle.rows, handle)


def choose_merge(rows: Sequence[int], nbytes: Sequence[int]) -> range | None:
    """Which neighbours to merge, if any; runs are given newest first.

    Only neighbours can be merged, or a group's runs would lose their order. Take the two whose sizes are nearest, then
    their neighbours as long as those are no larger than what is merged anyway. Merging 1 row into 1,000,000 each
    epoch, the expensive mistake, happens only when every other pair of neighbours is even less alike.

    Example:
        >>> choose_merge([1, 1, 1, 1, 1, 1, 1, 1, 9], [0] * 9)
        range(0, 8)
    """
    if len(rows) <= RUNS_MAX:
        return None
    sizes = [max(size, 1) for size in rows]
    pairs = [i for i in range(len(sizes) - 1) if nbytes[i] + nbytes[i + 1] <= MERGE_BYTES_MAX]
    if not pairs:
        return None
    start = min(pairs, key=lambda i: max(sizes[i], sizes[i + 1]) / min(sizes[i], sizes[i + 1]))
    stop = start + 2
    total, total_bytes = sum(sizes[start:stop]), sum(nbytes[start:stop])

    def joins(i: int) -> bool:
        return 0 <= i < len(sizes) and sizes[i] <= total and total_bytes + nbytes[i] <= MERGE_BYTES_MAX

    while joins(start - 1) or joins(stop):
        taken = start - 1 if joins(start - 1) else stop
        start, stop = min(start, taken), max(stop, taken + 1)
        total, total_bytes = total + sizes[taken], total_bytes + nbytes[taken]
    return range(start, stop)
