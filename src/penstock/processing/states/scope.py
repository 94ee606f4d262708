"""What all states of a running function share while a batch is worked on: its keys, which one is current, and what time it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT: Any = _Absent()
"""What a state holds of a key that has no value."""
_ROW = "__row"


class Keys:
    """The keys of a batch's rows, for the vectorised form: `state.get_many(keys)`."""

    __slots__ = ("columns", "moments")

    def __init__(self, columns: pa.RecordBatch, moments: np.ndarray[Any, Any] | None = None) -> None:
        self.columns = columns
        """The key columns, in canonical types, a row per row of the batch."""
        self.moments = moments
        """The event time of each row, as expiry sees it."""

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    def distinct(self) -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        """Each key once, and which of them each row has."""
        rows = pa.Table.from_batches([self.columns]).append_column(_ROW, pa.array(np.arange(len(self))))
        found = rows.group_by(self.columns.schema.names, use_threads=False).aggregate([(_ROW, "min"), (_ROW, "list")])
        members = found.column(f"{_ROW}_list").combine_chunks()
        of = np.empty(len(self), np.int64)
        of[members.flatten().to_numpy()] = np.repeat(np.arange(len(found)), members.value_lengths().to_numpy())
        return self.columns.take(found.column(f"{_ROW}_min").combine_chunks()), of

    def take(self, rows: Any) -> Keys:
        """The keys of some rows."""
        rows = rows if isinstance(rows, pa.Array) else pa.array(rows, pa.int64())
        moments = None if self.moments is None else self.moments[rows.to_numpy(zero_copy_only=False)]
        return Keys(self.columns.take(rows), moments)


class Scope:
    """What all states of a function share while a batch is worked on."""

    def __init__(self) -> None:
        self.keys: pa.RecordBatch = pa.RecordBatch.from_arrays([], names=[])  # each key once
        self.at = 0  # the current one
        self.journal: list[tuple[Any, ...]] = []  # (function, arguments…) that undo what was done, to be called last first
        self.moment = 0  # event time now, as expiry sees it
        self.now = 0  # the time of day
        self.may_broadcast = False

    def undo(self) -> None:
        """Undo all since the journal was last cleared."""
        while self.journal:
            function, *arguments = self.journal.pop()
            function(*arguments)
