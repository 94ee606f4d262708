"""What snapshots cost a job by the clock, on a machine that is as fast as its other guests let it be.

The same job, without a single snapshot, has 14 million rows in one second and 21 in another: by the processor time a row takes, which
is what other guests do to caches and memory. Neither runs nor spells of seconds can be compared to 3%. Seconds that follow each other
can, if there are enough of them, and parts of a second better still. So a job has a snapshot at the beginning of every other second of
the clock (`EveryOther`), it notes when how many rows were done (`Notes`), and two things are looked at:

1. **Seconds**: each that has a snapshot beside the two around it, which have none.
2. **What is missing**: from a tenth of a second before the trigger to three after it, beside the halves of a second around that. All
   that a snapshot does happens there: freeze, write, publish, and the waits of those who want the same cores. It can be told only of a
   job whose batches take less than a tenth of a second.

Both are means over all snapshots of all runs, with their standard errors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

import penstock as pen
from benchmarks.systems import PARALLELISM, session
from penstock.connectors.connector import Chunk, Json, Reader, Source, SourceContext
from penstock.runners.conductor import Conductor
from penstock.runners.continuous.driver import ContinuousAttempts

SECOND_US = 1_000_000
START_S = 2  # of a run: what is imported, what memory is found for the first time
SOONER_US = SECOND_US // 10  # what a batch that is under way at the trigger may take
DURING_US = 4 * SECOND_US // 10
AROUND_US = SECOND_US // 2


# A job.


class EveryOther(pen.Continuous):
    """Two tasks: a snapshot at the beginning of each second whose number is even."""

    def __init__(self) -> None:
        super().__init__(session(), parallelism=PARALLELISM, snapshot_every="1s")

    def attempts(self, conductor: Conductor) -> ContinuousAttempts:
        return EveryOtherAttempts(conductor, self._spark)


class EveryOtherAttempts(ContinuousAttempts):
    """A job whose snapshots may wait."""

    def wants_epoch(self) -> bool:
        return int(time.time()) % 2 == 0


class Traced(Source):
    """Another source, and a file per split in `folder`: for jobs whose work is to read, and whose rows do not wait long after that."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source, self.folder = source, folder
        self.name, self.schema = source.name, source.schema
        self.bounded, self.replayable = source.bounded, source.replayable
        self.skips, self.joined = source.skips, source.joined

    def splits(self) -> tuple[str, ...]:
        return self.source.splits()

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return TracedReader(self.source.open(split, position, context), self.folder / f"{split}.trace")

    def describe(self) -> str:
        return self.source.describe()


class TracedReader(Reader):
    """Notes what is read."""

    def __init__(self, reader: Reader, file: Path) -> None:
        self.reader, self.notes = reader, Notes(file)

    def poll(self, rows_max: int) -> Chunk | None:
        chunk = self.reader.poll(rows_max)
        if chunk is not None and chunk.batch is not None:
            self.notes.add(chunk.batch.num_rows)
            if chunk.ended:
                self.notes.write()
        return chunk

    def backlog(self) -> bool:
        return self.reader.backlog()

    def close(self) -> None:
        self.reader.close()


class Notes:
    """When there were how many rows, and what processor time this process had had by then: all in microseconds. They are written once a
    second: to send them along with the rows would be work for the driver, and seen."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.rows = 0
        self.found: list[tuple[int, int, int]] = []

    def add(self, rows: int) -> None:
        """So many more, now."""
        self.rows += rows
        self.found.append((time.time_ns() // 1000, self.rows, time.process_time_ns() // 1000))
        if self.found[-1][0] - self.found[0][0] > SECOND_US:
            self.write()

    def write(self) -> None:
        """To the file's end."""
        with self.file.open("ab") as file:
            np.array(self.found, np.int64).tofile(file)
        self.found = []


# What is made of it.


@dataclass(frozen=True, slots=True)
class Trace:
    """What the tasks of one run noted: by task, rows of (time, rows by then, processor time by then)."""

    tasks: Sequence[npt.NDArray[np.int64]]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of all files with notes in there; they are removed."""
        found = []
        for file in sorted(folder.glob("*.trace")):
            found.append(np.fromfile(file, np.int64).reshape(-1, 3))
            os.unlink(file)
        return cls(found)

    def seconds(self) -> range:
        """The whole seconds in which all tasks were at work, without those of the start."""
        first = max((int(notes[0, 0]) for notes in self.tasks if len(notes)), default=0)
        last = min((int(notes[-1, 0]) for notes in self.tasks if len(notes)), default=0)
        return range(-(-first // SECOND_US) + START_S, last // SECOND_US)

    @property
    def fine(self) -> bool:
        """Whether there are notes enough to tell parts of a second apart."""
        return all(len(notes) > 1 and np.median(np.diff(notes[:, 0])) < SOONER_US for notes in self.tasks)

    def rate(self, begin_us: int, end_us: int, of: int = 1) -> float:
        """Rows per second between two moments; `of=2`: processor time per second."""
        gained = sum(np.diff(np.interp([begin_us, end_us], notes[:, 0], notes[:, of]))[0] for notes in self.tasks)
        return float(gained) / (end_us - begin_us) * SECOND_US


class Left(NamedTuple):
    """What is left of something with snapshots, as a share; the standard error of that; and how many snapshots say so."""

    share: float
    error: float
    count: int

    @classmethod
    def of(cls, shares: Iterable[float]) -> Self:
        """The mean of what each snapshot leaves."""
        found = np.array(list(shares))
        if len(found) < 2:
            return cls(float("nan"), float("nan"), len(found))
        return cls(float(found.mean()), float(found.std(ddof=1)) / len(found) ** 0.5, len(found))

    def text(self) -> str:
        """In percent."""
        return f"{self.share:.1%} ± {self.error:.1%}" if self.count > 1 else "cannot be told"


@dataclass(frozen=True, slots=True)
class Cost:
    """What snapshots cost some runs."""

    with_one: float  # rows per second, the median of seconds with a snapshot
    without: float
    by_seconds: Left
    by_cpu: Left
    by_missing: Left

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Self:
        """Of all snapshots that have a whole second on either side."""
        seconds: dict[bool, list[float]] = {True: [], False: []}
        by_seconds, by_cpu, by_missing = [], [], []
        for trace in traces:
            whole = trace.seconds()
            rates = {second: trace.rate(*of_second(second)) for second in whole}
            costs = {second: trace.rate(*of_second(second), of=2) / rates[second] for second in whole}
            for second, rate in rates.items():
                seconds[second % 2 == 0].append(rate)
            for second in whole[1:-1]:
                if second % 2 == 0:
                    by_seconds.append(2 * rates[second] / (rates[second - 1] + rates[second + 1]))
                    by_cpu.append((costs[second - 1] + costs[second + 1]) / costs[second] / 2)
                    if trace.fine:
                        by_missing.append(1 - missing(trace, second * SECOND_US))
        with_one, without = (float(np.median(seconds[has])) if seconds[has] else float("nan") for has in (True, False))
        return cls(with_one, without, Left.of(by_seconds), Left.of(by_cpu), Left.of(by_missing))

    def figures(self, unit: str) -> dict[str, str]:
        """For the tables of the document."""
        return {
            f"{unit} per second, in seconds without a snapshot and with one": f"{self.without / 1e6:.2f}M, {self.with_one / 1e6:.2f}M",
            "what is left: seconds with one beside those around them": self.by_seconds.text(),
            "what is left by processor time": self.by_cpu.text(),
            "what is left: four tenths of a second that have one beside the halves around them": self.by_missing.text(),
            "snapshots that were looked at": str(self.by_seconds.count),
        }


def of_second(second: int) -> tuple[int, int]:
    """When it begins and ends."""
    return second * SECOND_US, (second + 1) * SECOND_US


def missing(trace: Trace, trigger: int) -> float:
    """How many seconds' worth of rows are missing around a snapshot that was wanted then: of one second, the share that it costs."""
    begin = trigger - SOONER_US
    end = begin + DURING_US
    around = trace.rate(begin - AROUND_US, begin) + trace.rate(end, end + AROUND_US)
    return (1 - 2 * trace.rate(begin, end) / around) * DURING_US / SECOND_US
