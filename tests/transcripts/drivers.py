"""Ways to play transcripts: tasks fed by hand, and jobs on any runner, all transcripts in one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock import sinks
from penstock.connectors.connector import Committer, Sink, SinkContext, Writer
from penstock.protocol.messages import TimeReached
from runtime.rig import NoCommitter, Rig
from transcripts.build import Result, build, read
from transcripts.judge import Outcome, Rows, plain
from transcripts.script import CLOCK, Row, Step, Transcript
from transcripts.source import Entry, Scripted, batch_of, entries, write_number

DEADLINE_S = 60


# --- tasks alone
# ----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain(Sink):
    """Keeps rows as the judge wants them."""

    name: str
    rows: Rows = field(default_factory=list)
    accepts = frozenset({"append", "update", "retract"})

    def writer(self, context: SinkContext) -> Writer:
        return PlainWriter(self)

    def committer(self, context: SinkContext) -> Committer:
        return NoCommitter()


class PlainWriter(Writer):
    def __init__(self, sink: Plain) -> None:
        self._rows = sink.rows

    def write(self, batch: pa.RecordBatch) -> None:
        batch.validate(full=True)
        self._rows.extend(plain(batch))

    def prepare(self, epoch: int) -> Sequence[Any]:
        return []


def by_hand(transcript: Transcript, *, rows_max: int, parallelisms: Sequence[int]) -> tuple[Result, Outcome]:
    """Feed the tasks of a transcript's pipeline.

    Args:
        rows_max: how many rows a batch has.
        parallelisms: if there are several, before each step a snapshot is taken and restored with the next of them.
    """
    out, late = Plain("out"), Plain("late")
    p = pen.Pipeline(transcript.slug)
    result = build(read(p, Scripted("script", [], [], "")), transcript, out, late)
    plan = p.plan()
    rig = Rig(plan, parallelisms[0], own_time=True)
    steps: list[Rows] = []
    now, seen = CLOCK, 0
    for number, step in enumerate(transcript.steps):
        if len(parallelisms) > 1:
            rig = Rig(plan, parallelisms[number % len(parallelisms)], cut=rig.barrier(number + 1), files=rig.files, own_time=True)
        now = step.value if step.action == "clock" else now
        for task in rig.tasks.values():
            rig.tell(task, TimeReached(now))
        play(rig, step, rows_max)
        steps.append(out.rows[seen:])
        seen = len(out.rows)
    if len(parallelisms) > 1:  # a source that has ended says so again after a restore
        Rig(plan, 2, cut=rig.barrier(len(steps) + 1), files=rig.files, own_time=True).end()
        steps[-1].extend(out.rows[seen:])
    return result, Outcome(steps, rows_of(late.rows))


def play(rig: Rig, step: Step, rows_max: int) -> None:
    if step.action == "rows":
        rows = entries(step)
        for start in range(0, len(rows), rows_max):
            rig.feed(batch_of(rows[start : start + rows_max]), source="script", split="script")
    elif step.action == "watermark":
        rig.watermark(step.value)
    elif step.action == "end":
        rig.end()


def rows_of(late: Rows) -> list[Row]:
    return [(row["k"], row["at"], row["v"]) for row in late]


# --- jobs
# ----------------------------------------------------------------------------------------------------------------------------------


def phases_of(transcripts: Sequence[Transcript]) -> list[list[int]]:
    """For each transcript the phase of each of its steps, such that all can share one clock.

    Phases go by the clock: first what comes before any of its changes, then each change in turn with what follows it.
    """
    clocks = sorted({CLOCK} | {step.value for t in transcripts for step in t.steps if step.action == "clock"})
    parts: list[dict[int, int]] = []  # of each transcript: at each clock, how many steps
    for transcript in transcripts:
        now, counts = CLOCK, defaultdict(int)
        for step in transcript.steps:
            now = step.value if step.action == "clock" else now
            counts[now] += 1
        parts.append(counts)
    begins, phase = {}, 0
    for clock in clocks:
        begins[clock] = phase
        phase += max(counts.get(clock, 0) for counts in parts)
    return [[begins[clock] + i for clock in clocks for i in range(counts.get(clock, 0))] for counts in parts]


COMMITTED: dict[str, list[pa.RecordBatch]] = defaultdict(list)
"""What jobs of this process committed, by sink."""


@dataclass(frozen=True)
class Keep:
    """Called with each committed epoch, in this process."""

    name: str

    def __call__(self, rows: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
        COMMITTED[self.name].extend(rows.read_all().to_batches())


def take(sink: str) -> Rows:
    """What was committed since the last call."""
    return [row for batch in COMMITTED.pop(sink, []) for row in plain(batch)]


class Play:
    """Transcripts as one pipeline, and the files that steer it. `at_once`: all there is in one phase, for runners that know no more."""

    def __init__(self, name: str, transcripts: Sequence[Transcript], folder: Path, *, at_once: bool = False) -> None:
        self.transcripts, self._at_once = list(transcripts), at_once
        self.phases = [[0] * len(t.steps) for t in transcripts] if at_once else phases_of(transcripts)
        self.count = 1 + max(phases[-1] for phases in self.phases)
        self.gate, self.clock = folder / "gate", folder / "time"
        write_number(self.gate, 0)
        write_number(self.clock, CLOCK)
        self.pipeline = pen.Pipeline(name)
        self.sources: dict[str, Scripted] = {}
        self.results: list[Result] = []
        streams: dict[str, pen.Stream] = {}
        for transcript, phases in zip(self.transcripts, self.phases):
            if transcript.source not in streams:
                self.sources[transcript.source] = self._source(transcript, phases)
                streams[transcript.source] = read(self.pipeline, self.sources[transcript.source])
            calls = [sinks.foreach_batch(Keep(f"{name} {transcript.slug} {what}"), name=what) for what in ("out", "late")]
            self.results.append(build(streams[transcript.source], transcript, *calls))
        self._name = name
        self._steps: list[list[Rows]] = [[[] for _ in t.steps] for t in transcripts]
        self._late: list[list[Row]] = [[] for _ in transcripts]

    def _source(self, transcript: Transcript, phases: list[int]) -> Scripted:
        rows: list[Entry] = []
        stops: list[int] = []
        for step, phase in zip(transcript.steps, phases):
            stops += [len(rows)] * (phase - len(stops))
            rows += entries(step)
            stops = [*stops[:phase], len(rows)]
        return Scripted(transcript.source, rows, stops, str(self.gate))

    def run(self, runner: Any) -> list[Outcome]:
        """Phase after phase: set the clock, open the gate, wait until what comes of it is committed."""
        job = self.pipeline.start(runner)
        try:
            for phase in range(self.count - 1):
                self._open(phase)
                self._await(job, phase)
                self._gather(phase)
            self._open(self.count - 1)
            job.wait(timeout=f"{DEADLINE_S}s")
        finally:
            if not job.done:
                job.cancel()
        self._gather(self.count - 1)
        return [Outcome(steps, late) for steps, late in zip(self._steps, self._late)]

    def _open(self, phase: int) -> None:
        happening = [step for t, phases in zip(self.transcripts, self.phases) for step, p in zip(t.steps, phases) if p == phase]
        clocks = set() if self._at_once else {step.value for step in happening if step.action == "clock"}
        assert len(clocks) <= 1, "one clock for all"
        for clock in clocks:
            write_number(self.clock, clock)
        write_number(self.gate, phase)

    def _await(self, job: pen.Job, phase: int) -> None:
        wanted = {}
        for source in self.sources.values():
            over = phase >= len(source.stops) - 1
            wanted[source.name] = (source.stops[-1 if over else phase], over)
        deadline = time.monotonic() + DEADLINE_S
        while (missing := unlike(wanted, progress(job))) and not job.done:
            assert time.monotonic() < deadline, f"phase {phase}: {missing}"
            time.sleep(0.003)
        if job.done:
            job.wait()
            raise AssertionError(f"the job ended in phase {phase}")
        if any(phases[-1] == phase for phases in self.phases):
            time.sleep(0.05)  # a split may be over in one epoch, and what comes of it be in the next

    def _gather(self, phase: int) -> None:
        """What was committed since the last phase belongs to the next step of its transcript, or to its end."""
        for number, (transcript, phases) in enumerate(zip(self.transcripts, self.phases)):
            step = next((i for i, p in enumerate(phases) if p >= phase), -1)
            self._steps[number][step] += take(f"{self._name} {transcript.slug} out")
            self._late[number] += rows_of(take(f"{self._name} {transcript.slug} late"))


Reached = dict[str, tuple[int, bool]]  # how many rows of a source were read, and whether it has ended


def unlike(wanted: Reached, reached: Reached) -> dict[str, Any]:
    return {name: (reached.get(name), at) for name, at in wanted.items() if reached.get(name, (0, False)) != at}


def progress(job: pen.Job) -> Reached:
    """How far the sources were read in epochs that are published and committed; asked in the thread that commits."""

    def look() -> None:
        manifest, core = job.conductor.manifest, job.conductor._core
        if manifest is not None and core is not None and not core.pending:
            splits = ((source.name, split) for source in manifest.sources for split in source.splits.values())
            found.update({name: (split.position or 0, split.ended) for name, split in splits})
        answered.set()

    found: Reached = {}
    answered = threading.Event()
    job.conductor.call(look)
    while not answered.wait(0.05) and not job.done:
        pass
    return found
