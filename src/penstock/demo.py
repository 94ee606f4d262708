"""The demo: count ads on Spark, kill a worker half-way, and check that nothing was lost or counted twice.

    penstock demo

Generated ad events go through a pipeline that runs continuously on this machine: views per campaign in windows of ten seconds,
into files. Half-way one of the two Python workers gets SIGKILL. The job goes on by itself from its last snapshot and reads again
what came after it. At the end the files are compared with a count that shares nothing with the pipeline but the events.

"exactly once: yes" is said only where it was put to the test:

1. the kill was delivered, and the process is gone;
2. the job needed a second attempt;
3. rows were read a second time;
4. every count of every campaign and window is the expected one, and no other is there.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock import sinks, sources
from penstock.api.keyed import tumbling
from penstock.api.pipeline import Pipeline
from penstock.connectors.adevents import AD_EVENT, ad_events, campaign_of, campaigns
from penstock.errors import PenstockError
from penstock.expr import col, count, udf
from penstock.runners.job import Job

__all__ = ["Kill", "Verdict", "ad_counts", "committed_in", "expected_views", "run", "verdict"]

SECONDS, RATE = 20.0, 20_000
WINDOW_S = 10
SPEED = 4  # seconds of event time per second: windows close while one looks
DISORDER_MS = 500
GONE_S = 5.0
SHOWN = 10  # campaigns

Counts = Mapping[tuple[str, int], int]  # (campaign, start of the window in seconds since 1970) -> views


# What runs.


@udf(returns="string")
def campaign(ads: pa.Array) -> pa.Array:
    """The campaign of each ad, for a whole column at a time."""
    table = _campaigns()
    return table["campaign_id"].take(pc.index_in(ads, value_set=table["ad_id"])).combine_chunks()


@functools.cache
def _campaigns() -> pa.Table:
    return campaigns().combine_chunks()


def rows_per_ms(rate: float) -> int:
    """How many events share a millisecond of event time."""
    return max(1, round(rate / 1000 / SPEED))


def ad_counts(rows: int, rate: float, out: Path) -> Pipeline:
    """Views per campaign and window, of generated events, into files."""
    events = functools.partial(ad_events, rows_per_ms=rows_per_ms(rate), disorder_ms=DISORDER_MS)
    return (
        Pipeline("demo-ad-counts")
        .read(sources.generate(events, schema=AD_EVENT, rows=rows, rate=rate, name="ad-events"))
        .with_watermark("at", delay="1s")
        .filter(col("event_type") == "view")
        .with_columns(campaign_id=campaign(col("ad_id")))
        .key_by("campaign_id")
        .window(tumbling(f"{WINDOW_S}s"))
        .aggregate(views=count(), name="counts")
        .write(sinks.files(out), name="counts")
    )


# What came out, and what should have.


def committed_in(out: Path) -> Counter[tuple[str, int]]:
    """What the files say. A window that is there twice counts twice."""
    found: Counter[tuple[str, int]] = Counter()
    for file in sorted(glob.glob(f"{out}/epoch=*/part-*")):
        table = pq.ParquetFile(file).read(["campaign_id", "window_start", "views"])
        starts = table["window_start"].cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1_000_000
        for key, start, views in zip(table["campaign_id"].to_pylist(), starts.tolist(), table["views"].to_pylist(), strict=True):
            found[key, start] += views
    return found


def expected_views(rows: int, rate: float, chunk: int = 200_000) -> Counter[tuple[str, int]]:
    """The same counts from the row numbers alone: no stream, no operator, no state."""
    found: Counter[tuple[str, int]] = Counter()
    for first in range(0, rows, chunk):
        index = np.arange(first, min(first + chunk, rows), dtype=np.int64)
        made = ad_events(index, 0, ["ad_id", "event_type", "at"], rows_per_ms=rows_per_ms(rate), disorder_ms=DISORDER_MS)
        seen = made["event_type"].to_numpy(zero_copy_only=False) == "view"
        ads = made["ad_id"].dictionary_encode()
        starts = made["at"].cast(pa.int64()).to_numpy() // (WINDOW_S * 1_000_000) * WINDOW_S
        pairs = (ads.indices.to_numpy()[seen].astype(np.int64) << 40) + starts[seen]
        names = ads.dictionary.to_pylist()
        for pair, n in zip(*(each.tolist() for each in np.unique(pairs, return_counts=True)), strict=True):
            found[campaign_of(names[pair >> 40]), pair & ((1 << 40) - 1)] += n
    return found


@dataclass(frozen=True, slots=True)
class Kill:
    """What became of the wish to kill a worker."""

    pid: int | None = None
    delivered: bool = False  # the process was there, got the signal, and is gone
    why: str = "no worker was killed"  # if not


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether exactly once was put to the test and held; if not, why."""

    exactly_once: bool
    reasons: tuple[str, ...] = ()


def verdict(committed: Counts, expected: Counts, kill: Kill, attempt: int, replayed: int, failure: str | None = None) -> Verdict:
    """Judge a run. A run in which nothing went wrong proves nothing, so it is not exactly once either.

    >>> verdict({("c", 0): 2}, {("c", 0): 2}, Kill(4711, True, ""), attempt=2, replayed=100)
    Verdict(exactly_once=True, reasons=())
    >>> verdict({("c", 0): 3}, {("c", 0): 2}, Kill(4711, True, ""), attempt=2, replayed=100).reasons
    ('1 of 1 counts are wrong: 0 missing, 1 too high, 0 too low (3 views committed, 2 expected)',)

    Args:
        attempt: the number of the job's last attempt.
        replayed: rows that were read more than once.
        failure: what made the job fail, if it did.
    """
    reasons = [] if failure is None else [f"the job failed: {failure}"]
    if not kill.delivered:
        reasons.append(f"nothing was put to the test: {kill.why}")
    if attempt < 2:
        reasons.append(f"the job needed no second attempt (it is at attempt {attempt})")
    if replayed <= 0:
        reasons.append("no row was read a second time")
    if not expected:
        reasons.append("nothing was expected, so nothing was compared")
    different = {key for key in {*committed, *expected} if committed.get(key) != expected.get(key)}
    if different:
        missing = sum(key not in committed for key in different)
        high = sum(committed.get(key, 0) > expected.get(key, 0) for key in different)
        low = len(different) - missing - high
        reasons.append(
            f"{len(different)} of {len({*committed, *expected})} counts are wrong: "
            f"{missing} missing, {high} too high, {low} too low "
            f"({sum(committed.values())} views committed, {sum(expected.values())} expected)"
        )
    return Verdict(not reasons, tuple(reasons))


# What goes wrong, on purpose.


def kill_worker(job: Job) -> Kill:
    """SIGKILL to one of the job's own Python workers, and a look whether it is gone."""
    own = [pid for pid in worker_pids(job) if descends_from(pid, os.getpid())]
    if not own:
        return Kill(why="no worker process of this job was found")
    pid, born = own[-1], birth(own[-1])
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        return Kill(pid, why=f"process {pid} could not be killed: {error.strerror}")
    until = time.monotonic() + GONE_S
    while birth(pid) == born:
        if time.monotonic() > until:
            return Kill(pid, why=f"process {pid} is still there {GONE_S:.0f} s after SIGKILL")
        time.sleep(0.01)
    return Kill(pid, True, "")


def worker_pids(job: Job) -> list[int]:
    """The processes of the attempt under way, as they introduced themselves to the driver."""
    server = getattr(getattr(job.conductor, "_attempts", None), "server", None)
    return [] if server is None else list(server.processes())


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether a process is a child of another, or a child of a child: what is not ours is not killed."""
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def birth(pid: int) -> str | None:
    """When a process began; None if there is none, or only what its parent has not yet buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


# The show.


@dataclass(slots=True)
class Watch:
    """How far a job is, from what its workers report."""

    job: Job
    rows: int
    resumed: int = 0  # where an earlier run of the same job had come
    attempts: list[dict[str, dict[str, int]]] = field(default_factory=list)  # counters of each attempt
    rate: float = 0.0
    _before: tuple[float, int] | None = None

    def look(self) -> None:
        """Take note of what was reported since the last look."""
        counters = self.job.conductor.counters
        if not any(counters is known for known in self.attempts):  # a new attempt begins with a new dictionary
            self.attempts.append(counters)
            self._before = None
        now, read = time.monotonic(), self.read()
        if self._before is None:
            self._before = (now, read)
        elif now - self._before[0] >= 1.0:
            self.rate = (read - self._before[1]) / (now - self._before[0])
            self._before = (now, read)

    def read(self) -> int:
        """Rows read in this attempt."""
        return rows_read(self.attempts[-1]) if self.attempts else 0

    def position(self) -> int:
        """How many rows of the input lie behind."""
        return positions(self.job.conductor.start) + self.read()

    def ahead(self) -> int:
        """Rows read since the last snapshot: they would have to be read again now."""
        manifest = self.job.conductor.manifest
        saved = (
            sum(int(split.position or 0) for source in manifest.sources for split in source.splits.values()) if manifest else 0
        )
        return self.position() - saved

    def replayed(self) -> int:
        """Rows that were read more than once, at least: what is lost of a report makes it less."""
        return max(self.job.conductor.replayed, sum(map(rows_read, self.attempts)) - (self.rows - self.resumed))


def rows_read(counters: Mapping[str, Mapping[str, int]]) -> int:
    """By all tasks of an attempt."""
    return sum(
        n
        for task in list(counters.values())
        for key, n in list(task.items())
        if key.startswith("source ") and key.endswith(".read")
    )


def positions(start: Any) -> int:
    """How many rows lie before a starting point."""
    return sum(int(entry.position or 0) for splits in start.splits.values() for entry in splits.values())


class View:
    """What people see meanwhile: a few lines that change, or in a file one line per second."""

    def __init__(self, console: Console, watch: Watch) -> None:
        self._console, self._watch = console, watch
        self._began = self._told = time.monotonic()
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def show(self) -> None:
        """Now."""
        watch, status = self._watch, self._watch.job.status()
        share = min(1.0, watch.position() / max(1, watch.rows))
        facts = {
            "state": status.state,
            "rows/s": f"{watch.rate:,.0f}",
            "watermark": status.watermark,
            "snapshot": f"{status.epoch}" + (f" ({status.epoch_age_s:.1f} s ago)" if status.epoch_age_s >= 0 else ""),
            "attempt": f"{status.attempt}",
        }
        if self._live:
            lines = [Text.assemble((f"{name:>10}  ", "dim"), (value, "bold")) for name, value in facts.items()]
            self._live.update(Group(*lines, ProgressBar(total=1.0, completed=share, width=50)), refresh=True)
        elif time.monotonic() - self._told >= 1.0:
            self._told = time.monotonic()
            said = "  ".join(f"{name} {value}" for name, value in facts.items())
            self._console.print(f"{self._told - self._began:5.1f} s  {share:4.0%}  {said}", soft_wrap=True)

    def say(self, text: str) -> None:
        """Something that stays."""
        self._console.print(text, soft_wrap=True)


def run(
    *,
    seconds: float = SECONDS,
    rate: float = RATE,
    folder: Path | None = None,
    console: Console | None = None,
    kill: Callable[[Job], Kill] = kill_worker,
) -> Verdict:
    """Run the demo and say what came of it.

    Args:
        folder: where checkpoints and files go; a run that was cut off there is taken up again. Left out: a temporary one.
        kill: what is done half-way.
    """
    from penstock.runners.continuous.driver import Continuous

    console = console or Console(highlight=False)
    place = folder or Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    rows = int(seconds * rate)
    console.print(
        f"Counting views of {rows:,} ad events, {rate:,.0f} a second, on Spark in this machine; a snapshot every second."
    )
    job = ad_counts(rows, rate, place / "counts").start(
        Continuous(parallelism=2, storage=place / "checkpoints", snapshot_every="1s", backoff="500ms")
    )
    watch = Watch(job, rows)
    try:
        killed, failure = drive(watch, seconds, console, kill)
    except BaseException:
        job.cancel()
        raise
    console.print("Counting again, from the row numbers alone.")
    committed, expected = committed_in(place / "counts"), expected_views(rows, rate)
    status = job.status()
    found = verdict(committed, expected, killed, status.attempt, watch.replayed(), failure)
    console.print(table_of(committed, expected))
    console.print(
        f"attempts {status.attempt}, snapshots {status.epoch}, rows read a second time: at least {max(0, watch.replayed()):,}"
    )
    console.print(
        f"exactly once: {'yes' if found.exactly_once else 'no'}", style="bold green" if found.exactly_once else "bold red"
    )
    for reason in found.reasons:
        console.print(f"  {reason}", soft_wrap=True)
    if folder is None and found.exactly_once:
        shutil.rmtree(place, ignore_errors=True)
    elif folder is None:
        console.print(f"  What was written is in {place}", soft_wrap=True)
    return found


def drive(watch: Watch, seconds: float, console: Console, kill: Callable[[Job], Kill]) -> tuple[Kill, str | None]:
    """Watch the job to its end and kill half-way; what became of the kill, and what made the job fail."""
    job, killed = watch.job, None
    until = time.monotonic() + 3 * seconds + 60
    half: float | None = None
    with View(console, watch) as view:
        while not job.done and time.monotonic() < until:
            watch.look()
            view.show()
            if half is None and job.status().state == "running":
                watch.resumed = positions(job.conductor.start)
                half = (watch.resumed + watch.rows) / 2
            # Between two snapshots, so that something is lost with the worker.
            due = half is not None and watch.position() >= half and watch.ahead() >= watch.rows / seconds / 4
            if killed is None and due and job.conductor.epochs_published > 0:
                killed = kill(job)
                what = f"Worker process {killed.pid} was killed (SIGKILL)" if killed.delivered else f"No kill: {killed.why}"
                view.say(f"{what}, {watch.ahead():,} rows after snapshot {job.status().epoch}.")
            job.conductor.halted.wait(0.1)
        watch.look()
    if not job.done:
        job.cancel()
        return killed or Kill(), "it did not end in time"
    try:
        job.wait()
    except PenstockError as error:
        return killed or Kill(), str(error)
    return killed or Kill(), None


def table_of(committed: Counts, expected: Counts) -> Table:
    """Campaigns side by side: those that differ first, and the sum of all."""
    table = Table(title="views per campaign", title_justify="left")
    for name in ("campaign", "windows", "views\ncommitted", "views\nexpected"):
        table.add_column(name, justify="left" if name == "campaign" else "right", min_width=36 if name == "campaign" else None)
    different = {key[0] for key in {*committed, *expected} if committed.get(key) != expected.get(key)}
    lines = {}
    for name in {key[0] for key in (*committed, *expected)}:
        windows = sum(key[0] == name for key in committed)
        lines[name] = (windows, *(sum(n for key, n in counts.items() if key[0] == name) for counts in (committed, expected)))
    order = sorted(lines, key=lambda name: (name not in different, name))
    for name in order[:SHOWN]:
        table.add_row(name, *(f"{n:,}" for n in lines[name]), style="red" if name in different else None)
    if len(order) > SHOWN:
        rest = [lines[name] for name in order[SHOWN:]]
        table.add_row(f"… and {len(rest)} more", *(f"{sum(line[i] for line in rest):,}" for i in range(3)))
    table.add_section()
    table.add_row("all", f"{len(committed):,}", f"{sum(committed.values()):,}", f"{sum(expected.values()):,}")
    return table
