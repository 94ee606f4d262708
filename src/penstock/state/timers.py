"""`TimerTable`: keys by due time. What has fired is one number per key group, not a tombstone per timer.

A timer is a key and the time (µs) at which it is due. Timers are added in batches, each a sorted *chunk*; a heap of
chunks by their first due time gives what is due next. Taking what is due is slicing the front off some chunks.

1. The **floor** of a key group: everything due at or before it has fired. Floors only rise. `due(time)` takes, then
   `advance(time)` raises the floors; a snapshot never falls between the two, so "due <= floor" *is* "has fired".
2. Floors travel with the snapshot. Tasks may have got further than others; after a rescale a task holds groups with
   different floors, and each timer is judged by the floor of its own group. So no timer fires twice and none is lost.
   Event time moves far more often than anything is due, and it moves for all groups: so that is one number (`_low`), which the
   floors of the groups are brought up to when somebody looks at them.
3. A run (kind "timers") is sorted by (due, group). A file is opened when the first of it could be due, not before; a
   run that lies below the floors is dropped, unread.
4. A timer added twice fires twice. A timer at or below its group's floor is refused: it would be lost on restore.
5. A timer belongs to its group by the first `route_columns` key columns, as in `table.py`.

    __group int32 | __due int64 | key columns…
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptError
from penstock.state import keygroups
from penstock.state.columns import Ints, fixed_values, gathered, span
from penstock.state.history import Floor, Frozen, History, reopen
from penstock.state.runfile import GROUP, SORTED, Files, Groups, Handle, Hashes
from penstock.state.runs import NEVER, Run

__all__ = ["DUE", "NEVER", "TimerTable"]

DUE = "__due"
BATCH_ROWS = 65_536
_FAN_IN = 16


@dataclass(slots=True)
class _Chunk:
    """Timers sorted by due. `origin` is the run they stand in; None if they were added since the last freeze."""

    due: Ints
    batch: pa.RecordBatch
    origin: Run | None
    level: int = 0

    @property
    def first(self) -> int:
        return int(self.due[0])

    def split(self, count: int) -> tuple[pa.RecordBatch, _Chunk]:
        """The first rows, and what remains; without a copy."""
        rest = _Chunk(self.due[count:], self.batch.slice(count), self.origin, self.level)
        return self.batch.slice(0, count), rest


class TimerTable:
    """The timers of one operator in one task.

    Example:
        >>> timers = TimerTable(pa.schema([("ad", pa.int64())]), range(128), 128)
        >>> timers.add(np.array([20, 10]), pa.record_batch({"ad": [1, 2]}))
        >>> [batch.to_pydict() for batch in timers.due(15)]
        [{'__due': [10], 'ad': [2]}]
        >>> timers.advance(15)
        >>> timers.next_due
        20
    """

    def __init__(
        self,
        keys: pa.Schema,
        groups: range,
        max_parallelism: int,
        *,
        route_columns: int | None = None,
        floors: Iterable[Sequence[int]] = (),
        runs: Iterable[Run] = (),
    ) -> None:
        assert groups.step == 1, "a task owns a contiguous range of groups"
        self.groups = groups
        self.max_parallelism = max_parallelism
        self._route_columns = route_columns or len(keys)
        self._schema = _timer_schema(keys)
        self._key_types = self._schema.types[2:]
        self._accepted: pa.Schema | None = None  # the schema of the keys that were added last, which are of these types
        self._by_group = np.full(len(groups), NEVER, np.int64)
        for first, last, floor in map(_checked_floor, floors):
            # A slice of the groups both sides have; empty if there are none.
            mine = self._by_group[max(first - groups.start, 0) : max(last + 1 - groups.start, 0)]
            np.maximum(mine, floor, out=mine)
        self._low, self._high = (int(self._by_group.min()), int(self._by_group.max())) if len(groups) else (NEVER, NEVER)
        self._history = History(runs)
        self._counter = itertools.count()
        self._heap: list[tuple[int, int, _Chunk | Run]] = []
        self._untidy = 0  # how many fresh chunks no merge has touched, at most
        for run in self._history.runs:
            self._push(run)

    @classmethod
    def open(
        cls,
        keys: pa.Schema,
        groups: range,
        max_parallelism: int,
        handles: Iterable[Handle],
        files: Files,
        *,
        floors: Iterable[Sequence[int]],
        route_columns: int | None = None,
    ) -> TimerTable:
        """The timers that were stored as `handles`, with the floors that were frozen with them (of all old tasks)."""
        mine = [handle for each in handles if (handle := each.within(groups)) is not None]
        assert all(handle.kind == "timers" for handle in mine), "a table is not timers"
        runs = [reopen(handle, files, _timer_schema(keys)) for handle in mine]
        return cls(keys, groups, max_parallelism, route_columns=route_columns, floors=floors, runs=runs)

    def close(self) -> None:
        """Let go of what is outside Python's memory: nothing."""

    # -- time

    @property
    def next_due(self) -> int | None:
        """When to look again: no timer is due before. (A file not opened yet may turn out to hold none then.)"""
        return self._heap[0][0] if self._heap else None

    def floor_of(self, groups: Groups) -> Ints:
        """The floor of each group; NEVER if nothing has fired there."""
        if self._low == self._high:  # as almost always: only a rescale makes them differ
            return np.full(len(groups), self._low)
        return self._floors[groups - self.groups.start]

    @property
    def _floors(self) -> Ints:
        """The floor of each of the task's groups."""
        np.maximum(self._by_group, self._low, out=self._by_group)
        return self._by_group

    @property
    def floor_max(self) -> int:
        """The highest floor: what is due later has fired in no group."""
        return self._high

    @property
    def floor_min(self) -> int:
        """The lowest floor: what is due by then has fired in all groups."""
        return self._low

    def add(self, due: Ints, keys: pa.RecordBatch, hashes: Hashes | None = None) -> None:
        """Set timers.

        Args:
            hashes: `hash_keys` of the first `route_columns` key columns, if the caller has them.
        """
        assert len(due) == keys.num_rows, f"{len(due)} due times for {keys.num_rows} keys"
        if not len(due):
            return
        if keys.schema != self._accepted:
            assert keys.schema.types == self._key_types, f"keys are {keys.schema}, not {self._schema}"
            self._accepted = keys.schema
        if hashes is None:
            hashes = keygroups.hash_keys(keys.select(list(range(self._route_columns))))
        groups = keygroups.groups_of(hashes, self.max_parallelism)
        first, last = span(groups)
        assert self.groups.start <= first <= last < self.groups.stop, f"a timer of another task's groups: this has {self.groups}"
        above = span(due)[0] > self._high or bool((due > self.floor_of(groups)).all())
        assert above, "a timer at or before its floor would never fire after a restore"
        arrays = [pa.array(groups, pa.int32()), pa.array(due, pa.int64()), *keys.columns]
        self._push(_sorted([pa.RecordBatch.from_arrays(arrays, schema=self._schema)]))
        self._untidy += 1
        if self._untidy >= _FAN_IN:
            self._tidy()

    def due(self, time: int) -> Iterator[pa.RecordBatch]:
        """Take all timers due at or before `time`: batches of (`__due`, keys…), in order of due, of bounded size.

        Timers may be added while this runs; those that are due are taken too. Call `advance(time)` afterwards.
        """
        return self._taken(time) if self._heap and self._heap[0][0] <= time else iter(())

    def advance(self, time: int) -> None:
        """Everything due at or before `time` has fired."""
        assert not self._heap or self._heap[0][0] > time, f"timers at {self.next_due} were not taken before {time}"
        self._low, self._high = max(self._low, time), max(self._high, time)

    def _taken(self, time: int) -> Iterator[pa.RecordBatch]:
        columns = self._schema.names[1:]
        while (taken := self._take(time)) is not None:
            batch = taken.batch.select(columns).replace_schema_metadata(None)
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)

    def _take(self, time: int) -> _Chunk | None:
        """Some of what is due, sorted, such that nothing left behind is due earlier."""
        ready: list[_Chunk] = []
        while self._heap and self._heap[0][0] <= time:
            item = heapq.heappop(self._heap)[2]
            if isinstance(item, Run):
                for chunk in self._opened(item):
                    self._push(chunk)
            else:
                ready.append(item)
        if not ready:
            return None
        quota = max(BATCH_ROWS // len(ready), 1)
        # A chunk that has more than its quota stops everyone at the due time it got to.
        cut = min([time, *(int(chunk.due[quota - 1]) for chunk in ready if len(chunk.due) >= quota)])
        parts = []
        for chunk in ready:
            count = min(int(np.searchsorted(chunk.due, cut, "right")), quota)
            front, rest = chunk.split(count)
            if count:
                parts.append(front)
            if len(rest.due):
                self._push(rest)
        return _sorted(parts)

    # -- snapshots

    def floors_json(self) -> list[list[int]]:
        """The floors as [first group, last group, floor], neighbours with the same floor together, NEVER left out."""
        return [list(floor) for floor in self._floor_list()]

    def freeze(self, epoch: int) -> Frozen:
        """The timers as of now, for `store`, with their floors; costs what was added since the last time."""
        fresh = self._fresh()
        if fresh:
            delta = _sorted([chunk.batch for chunk in fresh])
            delta.origin = Run.of(delta.batch)
            self._history.append(delta.origin)
            self._replace(fresh, delta)
        self._history.drop(self._fired)
        merge = functools.partial(_merge, groups=self.groups, floors=self._floors.copy())
        return self._history.freeze(epoch, kind="timers", schema=self._schema, merge=merge, floors=tuple(self._floor_list()))

    def stored(self, frozen: Frozen, handles: Sequence[Handle]) -> None:
        """`store(frozen)` returned these handles: refer to the files from now on."""
        before = set(self._history.runs)
        if not self._history.stored(frozen, handles):
            return
        now = set(self._history.runs)
        # What is left of a run is exactly what lies above the floors, so a chunk can be made anew from any run.
        self._keep(lambda item: item in now if isinstance(item, Run) else item.origin is None or item.origin in now)
        for run in self._history.runs:
            if run not in before and not self._fired(run):
                self._push(run)

    def _floor_list(self) -> list[Floor]:
        edges = np.flatnonzero(np.diff(self._floors)) + 1
        starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(self._floors)]
        spans = ((self.groups.start + a, self.groups.start + b - 1, int(self._floors[a])) for a, b in zip(starts, stops) if b > a)
        return [span for span in spans if span[2] != NEVER]

    def _fired(self, run: Run) -> bool:
        """Whether nothing of a run is left."""
        floors = self._floors[run.first_group - self.groups.start : run.last_group + 1 - self.groups.start]
        latest = run.handle.max_due if run.handle is not None else fixed_values(run.batch.column(1))[-1]
        return bool(latest <= floors.min())

    # -- chunks

    def _push(self, item: _Chunk | Run) -> None:
        if isinstance(item, _Chunk):
            first = item.first
        else:
            assert item.handle is not None, "only stored runs are opened later"
            assert item.handle.min_due is not None, "a timers handle says when its first timer is due"
            first = max(item.handle.min_due, self._low + 1)
        heapq.heappush(self._heap, (first, next(self._counter), item))

    def _keep(self, wanted: Callable[[_Chunk | Run], bool]) -> None:
        self._heap = [entry for entry in self._heap if wanted(entry[2])]
        heapq.heapify(self._heap)

    def _opened(self, run: Run) -> list[_Chunk]:
        """What of a run is ours and has not fired."""
        groups, due = fixed_values(run.batch.column(0)), fixed_values(run.batch.column(1))
        start = int(np.searchsorted(due, self._low, "right"))
        # Above the highest floor nothing has fired: that part needs no copy, if all of it is ours.
        ours = groups.min() >= run.first_group and groups.max() <= run.last_group
        middle = int(np.searchsorted(due, self._high, "right")) if ours else len(due)
        mixed = _alive(run, run.batch.slice(start, middle - start), self.groups, self._floors)
        batches = [mixed, run.batch.slice(middle)]
        return [_Chunk(fixed_values(batch.column(1)), batch, run) for batch in batches if batch.num_rows]

    def _tidy(self) -> None:
        """Merge fresh chunks, many small ones into a larger one, so that each timer is moved a few times at most."""
        for level in itertools.count():
            alike = [item for item in self._fresh() if item.level == level]
            if level == 0:
                self._untidy = len(alike) if len(alike) < _FAN_IN else 0
            if len(alike) < _FAN_IN:
                return
            self._replace(alike, _sorted([chunk.batch for chunk in alike], level=level + 1))

    def _fresh(self) -> list[_Chunk]:
        """The chunks added since the last freeze."""
        return [item for _, _, item in self._heap if isinstance(item, _Chunk) and item.origin is None]

    def _replace(self, old: Sequence[_Chunk], new: _Chunk) -> None:
        gone = set(map(id, old))
        self._keep(lambda item: id(item) not in gone)
        self._push(new)


def _timer_schema(keys: pa.Schema) -> pa.Schema:
    fields = [pa.field(GROUP, pa.int32(), False), pa.field(DUE, pa.int64(), False)]
    for field in keys:
        assert field.name not in (GROUP, DUE), f"a timer's key cannot be called {field.name!r}"
        fields.append(pa.field(field.name, field.type))
    return pa.schema(fields, SORTED)


def _sorted(batches: Sequence[pa.RecordBatch], *, level: int = 0) -> _Chunk:
    """One chunk of fresh timers."""
    batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
    groups, due = fixed_values(batch.column(0)), fixed_values(batch.column(1))
    if len(due) > 1 and not ((order := np.lexsort((groups, due)))[1:] > order[:-1]).all():
        batch, due = gathered(batch, order), due[order]
    return _Chunk(due, batch, None, level)


def _alive(run: Run, part: pa.RecordBatch, groups: range, floors: Ints) -> pa.RecordBatch:
    """The rows of a part of a run that are visible and above the floor of their group."""
    group, due = fixed_values(part.column(0)), fixed_values(part.column(1))
    visible = (group >= run.first_group) & (group <= run.last_group)
    floor = floors[np.where(visible, group - groups.start, 0)]
    alive = visible & (due > floor)
    return part if alive.all() else part.filter(pa.array(alive))


def _merge(runs: Sequence[Run], *, groups: range, floors: Ints, oldest: bool) -> pa.RecordBatch:
    """One run of what is left of several. Timers hide nothing, so it does not matter what is older."""
    return _sorted([_alive(run, run.batch, groups, floors) for run in runs]).batch


def _checked_floor(floor: object) -> Floor:
    if not isinstance(floor, list | tuple) or len(floor) != 3 or any(type(number) is not int for number in floor):
        raise CorruptError(f"a floor of timers is {floor!r}; expected [first group, last group, time]")
    first, last, time = floor
    if not 0 <= first <= last or not NEVER <= time < 2**63:
        raise CorruptError(f"a floor of timers is {floor!r}; its groups or time are out of range")
    return first, last, time
