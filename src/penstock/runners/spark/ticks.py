"""A streaming source for Structured Streaming that says "go on" and nothing else: one row per task, and a counter as its offset.

What an epoch reads comes from the newest checkpoint, which the driver holds, and travels with the first level's function. So
nothing about positions is in here, and Structured Streaming's own checkpoint holds nothing that could disagree with ours.

1. `latestOffset` is one more than the last: there is always another batch. The batch waits in the driver until the coordinator
   wants an epoch.
2. A batch has one partition per task, holding the number of that task.

Pickled by reference: workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

__all__ = ["FORMAT", "Ticks"]

FORMAT = "penstock-ticks"


class Ticks(DataSource):  # type: ignore[misc]
    """`readStream.format("penstock-ticks").option("tasks", 4)`."""

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return FORMAT

    def schema(self) -> str:
        """The number of a task."""
        return "task int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """The only way to read it."""
        return TickReader(int(self.options["tasks"]))


class TickReader(DataSourceStreamReader):  # type: ignore[misc]
    """Counts."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._tick = 0

    def initialOffset(self) -> dict[str, int]:
        """Before the first tick."""
        return {"tick": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """The next tick."""
        self._tick = 1 + max(self._tick, int(start["tick"]) if start else 0)
        return {"tick": self._tick}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One for each task."""
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """The number of the task."""
        yield (partition.value,)
