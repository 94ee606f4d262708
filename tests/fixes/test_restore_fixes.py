"""The fixes of what a restore refuses: each is done as it is told, on a copy of the storage, and the job goes on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import penstock as pen
from fixes.applying import code_of, evaluate, shown
from golden.checkpoints import goldens, pipelines
from golden.checkpoints.pipelines import GOLDEN
from penstock import sinks, sources
from penstock.cli import app
from penstock.errors import ConfigError
from penstock.restoreflags import flags_text, restore_of
from penstock.runners import conductor, cut

START = datetime(2026, 1, 1)  # UTC
SCHEMA = "k bigint, v bigint, at timestamp"


def numbers(name: str = "numbers", **options: Any) -> Any:
    def rows(index: Any, seed: int) -> dict[str, Any]:
        return {"k": index % 3, "v": index, "at": np.datetime64(START, "us") + index * np.timedelta64(1, "ms")}

    return sources.generate(rows, schema=SCHEMA, rate=2000, name=name, **options)


def ignored(rows: Any, epoch: pen.Epoch) -> None:
    """What comes out is of no interest here."""


def nowhere() -> pen.Sink:
    return sinks.foreach_batch(ignored, idempotent=True)


def counts(
    step: str = "counts",
    source: Any = None,
    *,
    name: str = "j",
    max_parallelism: int = 128,
    size: str | None = None,
    also: str | None = None,
    out: str = "out",
) -> pen.Pipeline:
    """Rows counted by key, in windows if they have a size."""
    p = pen.Pipeline(name, max_parallelism=max_parallelism)
    stream = p.read(source or numbers())
    if size is not None:
        stream = stream.with_watermark("at", delay="1s")
    keyed = stream.key_by("k")
    counted = keyed if size is None else keyed.window(pen.tumbling(size))
    counted.aggregate(n=pen.count(), name=step).write(nowhere(), name=out)
    if also is not None:
        stream.key_by("v").aggregate(n=pen.count(), name=also).write(nowhere(), name="also")
    return p


class Seen(pen.ProcessFunction):
    seen = pen.ValueState(int, default=0)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
        self.seen.set(self.seen.get() + 1)


class Known(pen.ProcessFunction):
    known = pen.ValueState(int, default=0)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
        self.known.set(self.known.get() + 1)


class Text(pen.ProcessFunction):
    seen = pen.ValueState(str, default="")

    def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
        self.seen.set(self.seen.get() + "x")


class Listing(pen.ProcessFunction):
    items = pen.ListState(int)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
        if not self.items.exists:
            self.items.extend(range(100))


class Forgetting(Listing):
    items = pen.ListState(int, ttl="1h", clock="processing")


def process(function: pen.ProcessFunction) -> pen.Pipeline:
    p = pen.Pipeline("j")
    p.read(numbers()).key_by("k").process(function, schema="k bigint", name="f").write(nowhere(), name="out")
    return p


def run(pipeline: pen.Pipeline, storage: Path, restore: Any = "latest") -> None:
    """Start, go on for two epochs, and stop: or raise why that cannot be."""
    job = pipeline.start(pen.Local(storage=storage, snapshot_every="10ms", restarts=0), restore=restore)
    began = time.monotonic()
    while not job.done and job.conductor.epochs_published < 2:
        assert time.monotonic() < began + 20, job.status()
        time.sleep(0.005)
    job.stop()


@dataclass(frozen=True)
class Storage:
    """A storage that each alternative of a fix gets a copy of."""

    folder: Path

    def run(self, pipeline: pen.Pipeline, restore: Any = "latest") -> None:
        run(pipeline, self.folder, restore)

    def savepoint(self, pipeline: pen.Pipeline) -> Path:
        path = self.folder.parent / f"savepoint of {pipeline.name}"
        job = pipeline.start(pen.Local(storage=self.folder, snapshot_every="10ms"))
        job.savepoint(path)
        job.stop()
        return path

    def fresh(self) -> Storage:
        return Storage(self.folder.with_name(f"fresh-{len(list(self.folder.parent.iterdir()))}"))

    def copy(self) -> Storage:
        copied = self.folder.with_name(f"copy-{len(list(self.folder.parent.iterdir()))}")
        shutil.copytree(self.folder, copied)
        return Storage(copied)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


def applied(storage: Storage, make: Callable[..., pen.Pipeline], text: str, alternatives: int = 1) -> None:
    """Each of the alternatives that a fix writes out works, and from the newest checkpoint it works again."""
    found = code_of(text)
    assert len(found) == alternatives, found
    for code in found:
        restore = evaluate(code.removeprefix("restore="))
        if restore == "none":
            storage.copy().run(make(out="elsewhere"), restore)
        elif restore == "latest" or restore.path == "latest":
            mine = storage.copy()
            mine.run(make(), restore)
            mine.run(make(), restore)
        else:
            storage.fresh().run(make(), restore)


def test_a_step_that_was_renamed_or_removed(storage: Storage) -> None:
    storage.run(counts("old"))
    text = shown("restore.step-removed", lambda: storage.run(counts("new")))
    applied(storage, lambda: counts("new"), text, alternatives=2)
    saved = storage.savepoint(counts("old"))
    text = shown("restore.step-removed", lambda: storage.fresh().run(counts("new"), saved))
    applied(storage, lambda: counts("new"), text, alternatives=2)


def test_what_was_written_is_not_lost_when_more_is_told(storage: Storage) -> None:
    storage.run(counts("one", also="two"))
    first = shown("restore.step-removed", lambda: storage.run(counts("new")))
    said = evaluate(code_of(first)[0])
    second = shown("restore.step-removed", lambda: storage.run(counts("new"), said))
    (drop,) = code_of(second)
    assert evaluate(drop).rename == said.rename
    applied(storage, lambda: counts("new"), second)


def test_a_source_that_was_renamed_or_removed(storage: Storage) -> None:
    storage.run(counts(source=numbers("old")))
    text = shown("restore.source-removed", lambda: storage.run(counts(source=numbers("new"))))
    applied(storage, lambda: counts(source=numbers("new")), text, alternatives=2)


def test_a_source_of_another_kind(storage: Storage) -> None:
    def memory() -> pen.Pipeline:
        rows = [{"k": n % 3, "v": n, "at": START.replace(tzinfo=UTC)} for n in range(1000)]
        return counts(source=sources.memory(rows, schema=SCHEMA, name="numbers"))

    storage.run(counts())
    text = shown("restore.source-kind", lambda: storage.run(memory()))
    mine = storage.copy()
    memory().run(pen.Local(storage=mine.folder), restore=evaluate(*code_of(text)))


def test_a_finished_job(storage: Storage) -> None:
    counts(source=numbers(rows=50), size="1s").run(pen.Local(storage=storage.folder))
    text = shown("restore.finished", lambda: storage.run(counts(size="1s")))
    applied(storage, lambda **options: counts(size="1s", **options), text, alternatives=2)


def test_a_window_of_another_size(storage: Storage) -> None:
    storage.run(counts(size="10s"))
    text = shown("restore.step-changed", lambda: storage.run(counts(size="5s")))
    applied(storage, lambda: counts(size="5s"), text)


def test_another_max_parallelism(storage: Storage) -> None:
    storage.run(counts(max_parallelism=64))
    text = shown("restore.max-parallelism", lambda: storage.run(counts()))
    given = evaluate(*code_of(text))
    storage.run(counts(name=given.name, max_parallelism=given.max_parallelism))


def test_a_state_that_was_renamed_or_removed(storage: Storage) -> None:
    storage.run(process(Seen()))
    text = shown("restore.state-removed", lambda: storage.run(process(Known())))
    applied(storage, lambda: process(Known()), text, alternatives=2)


def test_a_state_of_another_type(storage: Storage) -> None:
    storage.run(process(Seen()))
    text = shown("restore.state-columns", lambda: storage.run(process(Text())))
    applied(storage, lambda: process(Text()), text)


def test_long_lists_that_are_to_be_one_value(storage: Storage) -> None:
    storage.run(process(Listing()))
    text = shown("restore.list-whole", lambda: storage.run(process(Forgetting())))
    assert text.startswith("Put it back as it was, or drop it.")
    storage.copy().run(process(Listing()))
    applied(storage, lambda: process(Forgetting()), text)


def test_a_name_that_is_not_there(storage: Storage) -> None:
    storage.run(counts("old"))
    wrong = pen.Restore("latest", rename={"odl": "new"})
    applied(storage, lambda: counts("new"), shown("restore.unknown-name", lambda: storage.run(counts("new"), wrong)))
    saved = storage.savepoint(counts("old"))
    wrong = pen.Restore(saved, rename={"old": "new"}, drop=["something else"])
    applied(storage, lambda: counts("new"), shown("restore.unknown-name", lambda: storage.fresh().run(counts("new"), wrong)))


def test_a_new_name_that_is_not_there(storage: Storage) -> None:
    storage.run(counts("old"))
    wrong = pen.Restore("latest", rename={"old": "nwe"})
    applied(storage, lambda: counts("new"), shown("restore.rename-target", lambda: storage.run(counts("new"), wrong)))


def test_a_step_renamed_and_dropped(storage: Storage) -> None:
    storage.run(counts("old"))
    wrong = pen.Restore("latest", rename={"old": "new"}, drop=["old"])
    text = shown("restore.renamed-and-dropped", lambda: storage.run(counts("new"), wrong))
    applied(storage, lambda: counts("new"), text, alternatives=2)


def test_a_field_that_is_said_to_be_in_another_state(storage: Storage) -> None:
    storage.run(holding(One, "one"))
    wrong = pen.Restore("latest", rename={"f.one.rest": "f.other.label"})
    text = shown("restore.renamed-elsewhere", lambda: storage.run(holding(Renamed, "one", "other"), wrong))
    applied(storage, lambda: holding(Renamed, "one", "other"), text)
    wrong = pen.Restore("latest", rename={"f.one.rest": "f.other.rest"})
    text = shown("restore.renamed-elsewhere", lambda: storage.run(holding(One, "one", "other"), wrong))
    assert text.startswith("Leave it out.")
    applied(storage, lambda: holding(One, "one", "other"), text)


def test_two_steps_of_one_name(storage: Storage) -> None:
    storage.run(counts("one", also="two"))
    wrong = pen.Restore("latest", rename={"one": "two"})
    text = shown("restore.same-name", lambda: storage.run(counts("two"), wrong))
    mine = storage.copy()
    assert "two" in evaluate(*code_of(text)).drop
    mine.run(counts("two"), evaluate(*code_of(text)))


def test_a_savepoint_of_another_pipeline(storage: Storage) -> None:
    theirs = storage.savepoint(counts("a", numbers("b"), name="theirs"))
    ours = storage.savepoint(counts())
    text = shown("restore.other-pipeline", lambda: storage.fresh().run(counts(), theirs))
    assert text == "Give the folder of a savepoint of 'j'"
    storage.fresh().run(counts(), ours)


def test_options_for_a_job_that_starts_empty(storage: Storage) -> None:
    storage.run(counts("old"))
    wrong = pen.Restore("none", drop=["old"])
    text = shown("restore.none-with-options", lambda: storage.run(counts("new"), wrong))
    applied(storage, lambda **options: counts("new", **options), text, alternatives=2)


def test_a_sink_that_is_gone_while_rows_are_promised_to_it(tmp_path: Path) -> None:
    told = goldens.unpack(goldens.COMMITS[0], "pending", tmp_path)
    golden = GOLDEN["pending"]

    def without(p: pen.Pipeline, inputs: pipelines.Streams, out: Path) -> None:
        events = inputs["events"]
        pipelines.write(events.key_by("k").aggregate(n=pen.count(), ids=pen.col("id").collect(), name="totals"), out, "totals")

    def start(golden: pipelines.Golden, **options: Any) -> pen.Job:
        p = golden.pipeline(told["input"], tmp_path / "out", tmp_path)
        return p.start(pen.Local(storage=tmp_path / "storage"), **options)

    changed = replace(golden, build=without)
    drop = pen.Restore("latest", drop=["firsts", "per-kind"])
    (tmp_path / "gate").write_text("0")
    assert "remove the sink" in shown("restore.sink-removed", lambda: start(changed, restore=drop).stop())
    start(golden).stop()
    start(changed, restore=drop).stop()


def test_rows_in_flight_to_a_step_that_takes_others(tmp_path: Path) -> None:
    told = goldens.unpack(goldens.COMMITS[0], "in-flight", tmp_path)
    golden = GOLDEN["in-flight"]

    def start(golden: pipelines.Golden) -> pen.Job:
        p = golden.pipeline(told["input"], tmp_path / "out", tmp_path)
        return p.start(pen.Local(storage=tmp_path / "storage"))

    changed = replace(golden, build=with_more)
    (tmp_path / "gate").write_text("1")
    assert "stop with a savepoint first" in shown("restore.in-flight", lambda: start(changed).stop())
    job = start(golden)
    job.savepoint(tmp_path / "savepoint")
    job.stop()
    start(changed).stop()


def with_more(p: pen.Pipeline, inputs: pipelines.Streams, out: Path) -> None:
    """What `totals` is, with one more column."""
    events = inputs["events"]
    pipelines.write(events.select("id", "v"), out, "rows")
    pipelines.write(events.key_by("k").aggregate(n=pen.count(), ids=pen.col("id").collect(), name="totals"), out, "totals")
    firsts = events.with_columns(more="v + 1").drop_duplicates("k", "text", name="firsts")
    pipelines.write(firsts.key_by("small").window(pen.tumbling("10s")).aggregate(n=pen.count(), name="per-kind"), out, "per-kind")


def test_another_hash(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    original = conductor.manifest_of
    with monkeypatch.context() as patch:
        patch.setattr(conductor, "manifest_of", lambda *a, **k: replace(original(*a, **k), hash_id="older"))
        storage.run(counts())
    text = shown("restore.hash", lambda: storage.run(counts()))
    assert text == f"Use the version of Penstock that wrote it: {pen.__version__}"
    facts = conductor.pipeline_facts
    monkeypatch.setattr(conductor, "pipeline_facts", lambda plan: replace(facts(plan), hash_id="older"))
    storage.run(counts())


def test_state_of_a_later_version(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    original = cut.step_entry
    with monkeypatch.context() as patch:
        patch.setattr(cut, "step_entry", lambda op: replace(original(op), version=2))
        storage.run(counts())
    assert shown("restore.later-version", lambda: storage.run(counts())) == "Use a later version of Penstock"
    monkeypatch.setattr(cut, "step_entry", lambda op: replace(original(op), version=2))
    storage.run(counts())


def test_a_state_of_another_kind(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    original = conductor.manifest_of

    def older(*arguments: Any, **options: Any) -> Any:
        manifest = original(*arguments, **options)
        (step,) = manifest.operators
        states = tuple(replace(state, changes="retract") if state.name == "seen" else state for state in step.states)
        return replace(manifest, operators=(replace(step, states=states),))

    with monkeypatch.context() as patch:
        patch.setattr(conductor, "manifest_of", older)
        storage.run(process(Seen()))
    applied(storage, lambda: process(Seen()), shown("restore.state-changed", lambda: storage.run(process(Seen()))))


# --- what is given


@pytest.mark.parametrize("given", [None, "", 5, {"old": "new"}])
def test_nothing_to_start_from(storage: Storage, given: Any) -> None:
    storage.run(counts())
    text = shown("restore.path", lambda: storage.run(counts(), given))
    applied(storage, lambda **options: counts(**options), text, alternatives=2)


@pytest.mark.parametrize("given", ["old", ["old"], ("old", 5), {"old": 5}, 5])
def test_a_new_name_without_an_old_one(storage: Storage, given: Any) -> None:
    storage.run(counts("old"))
    (code,) = code_of(shown("restore.rename", lambda: pen.Restore("latest", rename=given)))
    storage.run(counts("new"), pen.Restore("latest", **evaluate(f"dict({code})")))


@pytest.mark.parametrize("given", [5, ["old", 5], {"old": "new"}, b"old", None])
def test_names_that_are_none(storage: Storage, given: Any) -> None:
    storage.run(counts("old"))
    (code,) = code_of(shown("restore.names", lambda: pen.Restore("latest", drop=given)))
    storage.run(counts("new"), pen.Restore("latest", **evaluate(f"dict({code})")))


def test_a_word_for_yes_or_no(storage: Storage) -> None:
    wrong: Any = "no"
    for code in code_of(shown("restore.start-over-time", lambda: pen.Restore("latest", start_over_time=wrong))):
        storage.run(counts(), pen.Restore("latest", **evaluate(f"dict({code})")))


# --- fields and aggregates


@dataclass
class One:
    n: int
    rest: str | None = None


@dataclass
class Two:
    n: int
    more: int


@dataclass
class TwoWithDefault:
    n: int
    more: int = 3


@dataclass
class TwoOrNone:
    n: int
    more: int | None


@dataclass
class Begun:
    n: str = "none"
    rest: str | None = None


@dataclass
class Renamed:
    n: int
    label: str | None = None


def holding(kind: Any, *names: str) -> pen.Pipeline:
    names = names or ("one",)

    def on_row(self: Any, row: pen.Row, ctx: pen.Context) -> None:
        for each in names:
            if getattr(self, each).get() is None:
                given = {name: 1 for name in ("n", "more") if name in kind.__annotations__ and kind is not Begun}
                getattr(self, each).set(kind(**given))

    made = type("Holding", (pen.ProcessFunction,), {"on_row": on_row, **{name: pen.ValueState(kind) for name in names}})
    return process(made())


def totals(**aggregates: Any) -> pen.Pipeline:
    p = pen.Pipeline("j")
    p.read(numbers()).key_by("k").aggregate(**aggregates, name="totals").write(nowhere(), name="out")
    return p


def test_a_field_that_nothing_says_a_value_of(storage: Storage) -> None:
    storage.run(holding(One))
    text = shown("restore.field-added", lambda: storage.run(holding(Two), pen.Restore("latest", drop=["f.one.rest"])))
    assert text.startswith("Give it a default in its class, or declare it as T | None")
    for better in (TwoWithDefault, TwoOrNone):
        storage.copy().run(holding(better), pen.Restore("latest", drop=["f.one.rest"]))
    applied(storage, lambda: holding(Two), text)


def test_a_field_that_was_renamed_or_removed(storage: Storage) -> None:
    storage.run(holding(One))
    text = shown("restore.field-removed", lambda: storage.run(holding(Renamed)))
    applied(storage, lambda: holding(Renamed), text, alternatives=2)


def test_a_field_of_another_type(storage: Storage) -> None:
    storage.run(holding(One))
    mine = storage.copy()
    mine.run(holding(Begun), evaluate(*code_of(shown("restore.field-changed", lambda: storage.run(holding(Begun))))))
    mine.run(holding(Begun))


def test_an_aggregate_that_is_added_where_nothing_closes(storage: Storage) -> None:
    storage.run(totals(n=pen.count()))
    text = shown("restore.aggregate-added", lambda: storage.run(totals(n=pen.count(), most="max(v)")))
    applied(storage, lambda: totals(n=pen.count(), most="max(v)"), text)


def test_a_count_that_begins_where_rows_are_withdrawn_that_it_never_had(storage: Storage) -> None:
    def counted(**aggregates: Any) -> pen.Pipeline:
        p = pen.Pipeline("j")
        one = p.read(numbers()).key_by("k").window(pen.running(), emit="retract").aggregate(n=pen.count(), name="one")
        two = one.with_columns(odd="n % 2").key_by("odd").window(pen.running(), emit="retract")
        two.aggregate(users=pen.count(), **aggregates, name="two").write(nowhere(), name="out")
        return p

    storage.run(counted())
    said = pen.Restore("latest", start_empty=["two.late"])
    text = shown("restore.aggregate-withdrawn", lambda: storage.run(counted(late=pen.count()), said))
    storage.copy().run(counted(late="min(n)"), said)
    applied(storage, lambda: counted(late=pen.count()), text)


def test_an_aggregate_that_was_renamed_or_removed(storage: Storage) -> None:
    storage.run(totals(n=pen.count(), most="max(v)"))
    text = shown("restore.aggregate-removed", lambda: storage.run(totals(n=pen.count())))
    applied(storage, lambda: totals(n=pen.count()), text)
    text = shown("restore.aggregate-removed", lambda: storage.run(totals(n=pen.count(), highest="max(v)")))
    renamed, removed = code_of(text)
    storage.copy().run(totals(n=pen.count(), highest="max(v)"), evaluate(renamed))
    # Where it was removed, what is there now is new.
    more = shown(
        "restore.aggregate-added", lambda: storage.copy().run(totals(n=pen.count(), highest="max(v)"), evaluate(removed))
    )
    applied(storage, lambda: totals(n=pen.count(), highest="max(v)"), more)


def test_an_aggregate_that_is_another_one(storage: Storage) -> None:
    storage.run(totals(x="max(v)"))
    mine = storage.copy()
    mine.run(totals(x="min(v)"), evaluate(*code_of(shown("restore.aggregate-changed", lambda: storage.run(totals(x="min(v)"))))))
    mine.run(totals(x="min(v)"))


def test_an_aggregate_that_keeps_something_else(storage: Storage) -> None:
    greatest = {k: pen.col("v").top_k(k) for k in (2, 5)}
    storage.run(totals(x=greatest[2]))
    mine = storage.copy()
    text = shown("restore.aggregate-changed", lambda: storage.run(totals(x=greatest[5])))
    mine.run(totals(x=greatest[5]), evaluate(*code_of(text)))
    mine.run(totals(x=greatest[5]), evaluate(*code_of(text)))


def test_a_name_in_start_empty_that_is_not_there(storage: Storage) -> None:
    storage.run(totals(n=pen.count()))
    wrong = pen.Restore("latest", start_empty=["totals.msot"])
    text = shown("restore.start-empty-name", lambda: storage.run(totals(n=pen.count(), most="max(v)"), wrong))
    applied(storage, lambda: totals(n=pen.count(), most="max(v)"), text)


# --- on the command line

PROGRAM = """
import penstock as pen
from penstock import sinks, sources

def ignored(rows, epoch):
    pass

def pipeline(step: str = "old", rows: int = 500):
    def make(index, seed):
        return {"k": index % 3, "at": index.astype("datetime64[s]")}

    numbers = sources.generate(make, schema="k bigint, at timestamp", rate=100_000, rows=rows, name="numbers")
    timed = pen.Pipeline("j").read(numbers).with_watermark("at", delay="0s")
    counts = timed.key_by("k").aggregate(n=pen.count(), name=step)
    return counts.write(sinks.foreach_batch(ignored, idempotent=True), name="out")
"""


def test_the_command_line_is_told_flags_and_they_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "renamed_step.py").write_text(PROGRAM)

    def penstock(*more: str) -> Any:
        arguments = ["run", "renamed_step.py", "--runner", "local", "--storage", "storage", *more]
        return CliRunner().invoke(app, arguments)

    assert penstock().exit_code == 0
    flags: list[str] = []
    for _ in range(2):  # the step has another name, and the job had finished
        result = penstock("--set", "step=new", "--set", "rows=900", *flags)
        assert result.exit_code == 2, result.output
        (line,) = [line for line in result.output.splitlines() if "On the command line: " in line]
        flags = line.partition("On the command line: ")[2].split(", or ")[0].split()
    assert flags == ["--rename", "old=new", "--start-over-time"]
    assert penstock("--set", "step=new", "--set", "rows=900", *flags).exit_code == 0


def test_flags_say_what_the_call_says() -> None:
    fix = pen.errors.Fix(
        "some.fix", 'Write: pen.Restore("/a b", rename={"x": "y"}, drop=["z"], start_over_time=True), or put it back'
    )
    assert flags_text(fix) == "--restore '/a b' --rename x=y --drop z --start-over-time"
    assert flags_text(pen.errors.Fix("some.fix", "Write: pen.Local()")) == flags_text(None) == ""


def test_a_name_without_a_new_one_on_the_command_line() -> None:
    with pytest.raises(ConfigError):
        restore_of("latest", ["old"], [], start_over_time=False)
    (code,) = code_of(shown("cli.rename", lambda: restore_of("latest", ["old"], [], start_over_time=False)))
    flag, value = code.split()
    assert flag == "--rename"
    assert restore_of("latest", [value], [], start_over_time=False).rename == {"old": "new"}
