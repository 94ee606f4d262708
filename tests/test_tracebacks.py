"""What a user learns of an exception: of which function, from which line, called by which step; in every way a function is called."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock import col, sinks, sources, tracebacks
from penstock.connectors.connector import Chunk, Json, Reader, Sink, SinkContext, Source, SourceContext, Writer
from penstock.errors import RowError
from penstock.tracebacks import FRAMES_MAX, Within, blame, describe, is_users, place_of, told, users_frames

SCHEMA = "n bigint, at timestamp"
ROWS = [{"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}]


def breaks(found: Any) -> Any:
    return {"n": found}["boom"]


def line_of(function: Any, after: int = 1) -> str:
    return f"test_tracebacks.py:{function.__code__.co_firstlineno + after}"


def stream(name: str, **options: Any) -> Any:
    return pen.Pipeline(name, **options).read(sources.memory(ROWS, schema=SCHEMA))


def failure(pipeline: pen.Pipeline) -> tuple[str, str]:
    """What the job raised, and what its status says."""
    job = pipeline.start(pen.Local(restarts=0))
    with pytest.raises(pen.JobError) as caught:
        job.wait()
    return str(caught.value), job.status().error or ""


def one(row: pen.Row) -> int:
    return breaks(row)  # type: ignore[no-any-return]


def several(row: pen.Row) -> Iterator[int]:
    yield breaks(row)


def true(row: pen.Row) -> bool:
    return breaks(row)  # type: ignore[no-any-return]


async def awaited(row: pen.Row) -> int:
    return breaks(row)  # type: ignore[no-any-return]


def batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    return breaks(batch)


def moment(row: pen.Row) -> datetime:
    return breaks(row)  # type: ignore[no-any-return]


def both(left: pen.Row, right: pen.Row) -> pen.Row:
    return breaks(left)  # type: ignore[no-any-return]


def made(index: Any, seed: int) -> Any:
    return breaks(index)


def rows() -> Any:
    return breaks(0)


def by_column(values: pa.Array) -> pa.Array:
    return breaks(values)


def double(n: int) -> int:
    return breaks(n)  # type: ignore[no-any-return]


class Rows(pen.ProcessFunction):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> int:
        return breaks(row)  # type: ignore[no-any-return]


class Batches(pen.ProcessFunction):
    def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch:
        return breaks(batch)


class Opens(pen.ProcessFunction):
    def open(self, ctx: pen.Context) -> None:
        breaks(ctx)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> int:
        return 1


class Timed(pen.ProcessFunction):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
        ctx.set_timer("t", after="1s")

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> int:
        return breaks(timer)  # type: ignore[no-any-return]


class Adds(pen.Aggregate):
    def create(self) -> int:
        return 0

    def add(self, acc: int, n: int) -> int:
        return breaks(n)  # type: ignore[no-any-return]

    def merge(self, a: int, b: int) -> int:
        return a + b

    def result(self, acc: int) -> int:
        return acc


class Results(Adds):
    def add(self, acc: int, n: int) -> int:
        return acc + n

    def result(self, acc: int) -> int:
        return breaks(acc)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Quarter(pen.WindowShape):
    def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
        return breaks(at)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OwnSource(Source):
    name: str = "own"
    schema: pa.Schema = field(default_factory=lambda: pa.schema({"n": pa.int64()}))
    bounded: bool = True
    replayable: bool = True

    def splits(self) -> tuple[str, ...]:
        return ("0",)

    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return OwnReader()


class OwnReader(Reader):
    def poll(self, rows_max: int) -> Chunk | None:
        return breaks(rows_max)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OpensSource(OwnSource):
    def open(self, split: str, position: Json, context: SourceContext) -> Reader:
        return breaks(split)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class OwnSink(Sink):
    name: str = "own"
    accepts: frozenset[str] = frozenset({"append"})

    def writer(self, context: SinkContext) -> Writer:
        return OwnWriter()

    def committer(self, context: SinkContext) -> Any:
        return sinks.memory("own").committer(context)

    def describe(self) -> str:
        return "own"


class OwnWriter(Writer):
    def write(self, rows: pa.RecordBatch) -> None:
        breaks(rows)

    def prepare(self, epoch: int) -> list[Json]:
        return []

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class PreparesSink(OwnSink):
    def writer(self, context: SinkContext) -> Writer:
        return PreparesWriter()


class PreparesWriter(OwnWriter):
    def write(self, rows: pa.RecordBatch) -> None:
        pass

    def prepare(self, epoch: int) -> list[Json]:
        return breaks(epoch)  # type: ignore[no-any-return]


def save(batch: pa.RecordBatchReader, epoch: Any) -> None:
    breaks(epoch)


def read(source: Source) -> Any:
    return pen.Pipeline("p").read(source)


def out() -> Any:
    return sinks.memory("tracebacks")


WAYS: dict[str, tuple[Callable[[], pen.Pipeline], Any, str]] = {
    # how it is called: the pipeline, the function, who calls it
    "udf": (lambda: stream("p").select(v=pen.udf(double)(col("n"))).write(out()), double, "step 'project-1' ("),
    "udf by column": (
        lambda: stream("p").select(v=pen.udf(returns="bigint")(by_column)(col("n"))).write(out()),
        by_column,
        "step 'project-1' (",
    ),
    "udf in an aggregate": (
        lambda: stream("p").key_by("n").aggregate(v=pen.udf(double)(col("n")).sum(), name="sums").write(out()),
        double,
        "step 'sums:partial' (",
    ),
    "map": (lambda: stream("p").map(one).write(out()), one, "step 'rows-1' ("),
    "flat_map": (lambda: stream("p").flat_map(several, schema="v bigint").write(out()), several, "step 'rows-1' ("),
    "filter": (lambda: stream("p").filter(true).write(out()), true, "step 'rows-1' ("),
    "map_async": (lambda: stream("p").map_async(awaited, name="calls").write(out()), awaited, "step 'calls' ("),
    "map_batches": (lambda: stream("p").map_batches(batches, schema="n bigint").write(out()), batches, "step 'batches-1' ("),
    "watermark": (lambda: stream("p").with_watermark(moment, delay="1s").write(out()), moment, "step 'time-1' ("),
    "reduce": (
        lambda: (
            pen.Pipeline("p")
            .read(sources.memory([{"n": 1}, {"n": 1}], schema="n bigint"))
            .key_by("n")
            .reduce(both, name="folded")
            .write(out())
        ),
        both,
        "step 'folded' (",
    ),
    "on_row": (
        lambda: stream("p").key_by("n").process(Rows(), schema="v bigint", name="f").write(out()),
        Rows.on_row,
        "step 'f' (",
    ),
    "on_batch": (
        lambda: stream("p").key_by("n").process(Batches(), schema="v bigint", name="f").write(out()),
        Batches.on_batch,
        "step 'f' (",
    ),
    "open": (
        lambda: stream("p").key_by("n").process(Opens(), schema="v bigint", name="f").write(out()),
        Opens.open,
        "step 'f' (",
    ),
    "on_timer": (
        lambda: (
            stream("p").with_watermark("at", delay="0s").key_by("n").process(Timed(), schema="v bigint", name="f").write(out())
        ),
        Timed.on_timer,
        "step 'f' (",
    ),
    "aggregate add": (
        lambda: stream("p").key_by("n").aggregate(v=Adds()(col("n")), name="sums").write(out()),
        Adds.add,
        "step 'sums:partial' (",
    ),
    "aggregate result": (
        lambda: stream("p").key_by("n").aggregate(v=Results()(col("n")), name="sums").write(out()),
        Results.result,
        "step 'sums' (",
    ),
    "window": (
        lambda: (
            stream("p")
            .with_watermark("at", delay="0s")
            .key_by("n")
            .window(Quarter())
            .aggregate(v=pen.count(), name="quarters")
            .write(out())
        ),
        Quarter.assign,
        "step 'quarters' (",
    ),
    "generate": (lambda: read(sources.generate(made, schema="n bigint", rows=3)).write(out()), made, "source 'generate' ("),
    "call": (lambda: read(sources.call(rows, schema="n bigint")).write(out()), rows, "source 'rows' ("),
    "source": (lambda: read(OwnSource()).write(out()), OwnReader.poll, "source 'own' ("),
    "source that opens": (lambda: read(OpensSource()).write(out()), OpensSource.open, "source 'own' ("),
    "sink": (lambda: stream("p").write(OwnSink()), OwnWriter.write, "sink 'own' ("),
    "sink that prepares": (lambda: stream("p").write(PreparesSink()), PreparesWriter.prepare, "sink 'own' ("),
    "foreach_batch": (lambda: stream("p").write(sinks.foreach_batch(save)), save, "sink 'save' ("),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_raises_is_told_with_its_line_and_the_line_of_the_step(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, function, who = WAYS[way]
    with caplog.at_level(logging.WARNING, "penstock"):
        raised, status = failure(make())
    logged = "\n".join(record.getMessage() for record in caplog.records)
    name, line = function.__code__.co_qualname, line_of(function).partition(":")[2]
    for text in (raised, status):
        assert "KeyError: 'boom'" in text or "KeyError('boom')" in text, text
        assert f'test_tracebacks.py", line {line}, in {name}\n' in text, text
        assert f'test_tracebacks.py", line {line_of(breaks).partition(":")[2]}, in breaks\n' in text, text
        assert f"Your code, called by {who}test_tracebacks.py:" in text, text
        assert "/src/penstock/" not in text
    said = logged + "".join(str(record.exc_text or "") for record in caplog.records)
    assert said.count("in breaks\n") == 1, said


ENDS: dict[str, tuple[type[BaseException], Any]] = {
    "exits": (SystemExit, 3),
    "ends a generator": (GeneratorExit, "early"),
    "says half a character": (ValueError, "\ud800"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_function_that_exits_fails_like_any_other(way: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sys.exit()` had ended the process that the function was called in, or the job without the step."""

    def ends(found: Any) -> Any:
        raise kind(said)

    kind, said = ENDS[end]
    monkeypatch.setitem(globals(), "breaks", ends)
    make, function, who = WAYS[way]
    raised, status = failure(make())
    for text in (raised, status):
        assert kind.__name__ in text, text
        text.encode()  # a log file takes it
        assert f"in {function.__code__.co_qualname}\n" in text, text
        assert f"Your code, called by {who}test_tracebacks.py:" in text, text


def test_a_function_that_exits_makes_a_dead_letter_and_leaves_ctrl_c_alone() -> None:
    ended: list[type[BaseException]] = [SystemExit]

    def ends(row: pen.Row) -> int:
        raise ended[0]

    def pipeline() -> pen.Pipeline:
        found.clear()
        p = pen.Pipeline("ends", on_error="dead-letter")
        p.read(sources.memory(ROWS, schema=SCHEMA)).map(ends).write(sinks.memory("ends-out"))
        p.dead_letters.select("error").write(found)
        return p

    found = sinks.memory("ends-letters")
    pipeline().run(pen.Local())
    assert [row["error"].partition(" ")[0] for row in found.rows()] == ["SystemExit"]
    ended[0] = KeyboardInterrupt
    with pytest.raises(pen.JobError, match="KeyboardInterrupt"):
        pipeline().run(pen.Local())


def test_a_generator_of_ours_that_is_closed_is_no_failure() -> None:
    code = "def rows():\n  with Within('step'):\n    yield 1\n    yield 2"
    names: dict[str, Any] = {"Within": Within}
    exec(compile(code, tracebacks.__file__, "exec"), names)
    rows = names["rows"]()
    next(rows)
    rows.close()


@dataclass(frozen=True)
class BadSource(OwnSource):
    at: str = ""

    def splits(self) -> tuple[str, ...]:
        return breaks(self) if self.at == "splits" else ("0",)  # type: ignore[no-any-return]

    def receiver(self, context: SourceContext) -> Any:
        return breaks(self) if self.at == "receiver" else None


class BadCommitter:
    def __init__(self, at: str) -> None:
        self.at = at

    def committed(self) -> None:
        return breaks(self) if self.at == "committed" else None  # type: ignore[no-any-return]

    def sweep(self, keep: Any) -> None:
        return breaks(self) if self.at == "sweep" else None  # type: ignore[no-any-return]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class BadSink(OwnSink):
    at: str = ""

    def committer(self, context: SinkContext) -> Any:
        return breaks(self) if self.at == "committer" else BadCommitter(self.at)


BEGINNINGS: dict[str, tuple[Callable[[], pen.Pipeline], Any, str]] = {
    "splits": (lambda: read(BadSource(at="splits")).write(out()), BadSource.splits, "source 'own' ("),
    "receiver": (lambda: read(BadSource(at="receiver")).write(out()), BadSource.receiver, "source 'own' ("),
    "committer": (lambda: stream("p").write(BadSink(at="committer")), BadSink.committer, "sink 'own' ("),
    "committed": (lambda: stream("p").write(BadSink(at="committed")), BadCommitter.committed, "sink 'own' ("),
    "sweep": (lambda: stream("p").write(BadSink(at="sweep")), BadCommitter.sweep, "sink 'own' ("),
}


@pytest.mark.parametrize("kind", [KeyError, SystemExit, pen.RetriableError])
@pytest.mark.parametrize("way", BEGINNINGS)
def test_what_a_source_or_sink_raises_while_the_job_starts_is_told_with_its_line(
    way: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(found: Any) -> Any:
        raise kind("not now")

    monkeypatch.setitem(globals(), "breaks", ends)
    make, function, who = BEGINNINGS[way]
    with pytest.raises(pen.JobError) as caught:
        make().run(pen.Local(restarts=0))
    text = str(caught.value)
    assert "not now" in text, text
    assert f"in {function.__code__.co_qualname}\n" in text, text
    assert f"Your code, called by {who}test_tracebacks.py:" in text, text


def test_a_dead_letter_says_where_the_function_raised() -> None:
    found = sinks.memory("letters")
    p = pen.Pipeline("dead", on_error="dead-letter")
    numbers = p.read(sources.memory(ROWS, schema=SCHEMA))
    numbers.map(one).write(sinks.memory("good-1"))
    numbers.key_by("n").process(Rows(), schema="v bigint", name="f").write(sinks.memory("good-2"))
    numbers.select(v=pen.udf(double)(col("n"))).write(sinks.memory("good-3"))
    numbers.key_by("n").aggregate(v=Adds()(col("n")), name="sums").write(sinks.memory("good-4"))
    p.dead_letters.select("step", "error").write(found)
    p.run(pen.Local())
    errors = {row["error"] for row in found.rows()}
    raised = f"raised at {line_of(breaks)} in breaks)"
    assert errors == {
        f"KeyError: 'boom' (at {line_of(one)} in one, {raised}",
        f"KeyError: 'boom' (at {line_of(Rows.on_row)} in Rows.on_row, {raised}",
        f"double() failed: KeyError: 'boom' (at {line_of(double)} in double, {raised}",
        f"the input of an aggregate failed: Adds.add failed: KeyError: 'boom' (at {line_of(Adds.add)} in Adds.add, {raised}",
    }


def test_a_result_that_does_not_fit_names_the_function_that_returned_it() -> None:
    def words(row: pen.Row) -> int:
        return "three"  # type: ignore[return-value]

    raised, _ = failure(stream("p").map(words).write(out()))
    assert f"(by {line_of(words, 0)} in {words.__code__.co_qualname})" in raised


def test_a_column_that_does_not_fit_is_told_by_the_users_line_and_not_tried_again() -> None:
    """Frames of pyarrow's own modules had been taken for the user's: their lines were told, and there were three tries."""

    @pen.udf(returns="bigint")
    def words(values: pa.Array) -> pa.Array:
        return pa.array(["three"] * len(values))

    pipeline = stream("p").select(v=words(col("n"))).write(out())
    job = pipeline.start(pen.Local(restarts=5, backoff="1ms"))
    with pytest.raises(pen.JobError) as caught:
        job.wait()
    assert "in test_a_column_that_does_not_fit_is_told_by_the_users_line_and_not_tried_again.<locals>.words)" in str(caught.value)
    assert ".pxi" not in str(caught.value)
    assert job.status().restarts == 0


def fails_in_arrow() -> Any:
    return pa.array(["three"]).cast(pa.int64())


def fails_in_numpy() -> Any:
    return np.random.default_rng(0).choice(2, p=[1.0, 1.0])


@pytest.mark.parametrize("function", [fails_in_arrow, fails_in_numpy])
def test_of_modules_of_cython_no_frame_is_shown(function: Callable[[], Any]) -> None:
    with pytest.raises(ValueError) as caught:
        function()
    assert [frame.function for frame in users_frames(caught.value)][1:] == [function.__name__]


def test_where_a_module_of_cython_lies_the_module_says() -> None:
    assert is_users("own.pyx", "/home/ann/own.cpython-311-x86_64-linux-gnu.so")
    assert not is_users("lib.pyx", "/usr/lib/python3.11/site-packages/pandas/_libs/lib.cpython-311-x86_64-linux-gnu.so")
    assert not is_users("pandas/_libs/lib.pyx")
    assert is_users("<ipython-input-1>")


def parse(text: str) -> Any:
    return json.loads(text)


def test_of_pythons_own_library_no_frame_is_shown() -> None:
    with pytest.raises(ValueError) as caught:
        parse("{")
    assert told(caught.value).endswith(f", raised at {line_of(parse)} in parse)")
    assert "decoder.py" not in describe(caught.value)


def wrapped() -> None:
    try:
        breaks(1)
    except KeyError as error:
        raise RowError("the function failed") from error


def test_frames_come_from_the_exception_that_ours_was_raised_from() -> None:
    with pytest.raises(RowError) as caught:
        wrapped()
    assert users_frames(caught.value)[-1].function == "wrapped"
    caught.value.__traceback__ = None  # as if Penstock alone had raised it
    assert users_frames(caught.value)[-1].function == "breaks"


def deep(left: int) -> int:
    return deep(left - 1) if left else breaks(left)


def test_endless_recursion_is_not_told_a_thousand_times() -> None:
    with pytest.raises(KeyError) as caught:
        deep(100)
    text = describe(caught.value)
    assert text.count('File "') == FRAMES_MAX
    assert f"… {102 + 1 - FRAMES_MAX} more calls …" in text
    assert "in breaks" in text


def test_the_deepest_is_blamed_and_only_once() -> None:
    error = KeyError("k")
    blame(error, "step 'inner' (a.py:1)")
    blame(error, "step 'outer' (a.py:2)")
    assert describe(error).splitlines()[0] == "step 'inner' (a.py:1): KeyError: 'k'"


def test_an_error_of_our_own_names_our_line() -> None:
    with pytest.raises(Exception) as caught:
        np.array([1]).reshape(2)
    caught.value.__traceback__ = None
    assert describe(caught.value).splitlines()[0] == "ValueError: cannot reshape array of size 1 into shape (2,)"
    with pytest.raises(AttributeError) as internal:
        sources.memory([], schema="n bigint").open("0", None, None)  # type: ignore[arg-type]
    trace = internal.value.__traceback__
    assert trace is not None
    assert " (in connectors/memory.py:" in describe(internal.value.with_traceback(trace.tb_next))


class Odd:
    def __call__(self, n: int) -> int:
        return n

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_where_a_function_is_written_can_be_asked_of_anything() -> None:
    assert place_of(double) == f"{line_of(double, 0)} in double"
    assert place_of(int) == place_of(None) == place_of(Odd()) == place_of(json.loads) == ""
    assert place_of(sys.exit) == ""
