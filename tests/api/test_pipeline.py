"""`Pipeline`: names, what it collects, and what it hands to a runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.api import pipeline as pipeline_module
from penstock.errors import BadNameError, ConfigError, PlanError
from runtime.rig import Collect, Hand, hand

BAD_NAMES = ["../etc", "a/b", "/abs", "..", ".", "", ".hidden", "a b", "-x", "ümlaut", "x" * 129, "a\n", "a\x00b"]


def raised(build: Callable[[], Any]) -> PlanError:
    with pytest.raises(PlanError) as caught:
        build()
    return caught.value


@pytest.mark.parametrize("name", BAD_NAMES)
def test_the_name_of_a_pipeline_can_be_a_folder(name: str) -> None:
    error = raised(lambda: pen.Pipeline(name))
    assert isinstance(error, BadNameError)
    assert error.message == (
        f"{name!r} cannot be the name of a pipeline: letters, digits, '.', '_' and '-' are allowed,"
        " starting with a letter or digit, 128 at most"
    )
    assert (error.where or "").startswith("test_pipeline.py:")


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name])
def test_names_of_sources_and_sinks_can_be_folders(name: str) -> None:
    p = pen.Pipeline("test")
    assert "cannot be the name of a source" in raised(lambda: p.read(Hand(name))).message
    assert "cannot be the name of a source" in raised(lambda: p.read(Hand(), name=name)).message
    assert "cannot be the name of a sink" in raised(lambda: p.read(Hand()).write(Collect(name))).message
    assert "cannot be the name of a sink" in raised(lambda: p.read(Hand()).write(Collect(), name=name)).message
    with pytest.raises((ConfigError, PlanError)):
        sinks.memory(name)


@pytest.mark.parametrize("name", ["a", "word-count", "v1.2_x", "0", "x" * 128])
def test_ordinary_names_are_fine(name: str) -> None:
    assert pen.Pipeline(name).name == name


def test_a_name_that_is_no_text_is_refused() -> None:
    assert "5 cannot be the name of a pipeline" in raised(lambda: pen.Pipeline(5)).message  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["ignore", "", None])
def test_on_error_knows_two_words_and_retry(value: Any) -> None:
    assert raised(lambda: pen.Pipeline("a", on_error=value)).message == f"on_error={value!r} is not known"


@pytest.mark.parametrize("value", [0, -1, 32769])
def test_max_parallelism_has_a_range(value: int) -> None:
    assert raised(lambda: pen.Pipeline("a", max_parallelism=value)).message == (
        f"max_parallelism={value} is out of range (1 to 32768)"
    )


def test_read_wants_a_source() -> None:
    error = raised(lambda: pen.Pipeline("a").read("in/*.json"))  # type: ignore[arg-type]
    assert error.message == "read needs a source, and got 'in/*.json'"
    assert "sources.files(path) of files" in str(error)
    assert (error.where or "").startswith("test_pipeline.py:")


def test_a_source_may_be_given_another_name() -> None:
    p = pen.Pipeline("a")
    p.read(Hand("one"), name="other").write(Collect())
    assert [op.name for op in p.plan().reads] == ["other"]


def test_a_sink_may_be_given_another_name() -> None:
    p = pen.Pipeline("a")
    hand(p).write(Collect("one"), name="other")
    assert [op.name for op in p.plan().writes] == ["other"]


def test_a_pipeline_without_a_sink_says_how_to_end() -> None:
    p = pen.Pipeline("a")
    hand(p).select("k")
    error = raised(p.plan)
    assert str(error) == "pipeline 'a' writes nothing\n  End a stream with a sink. Write: .write(sinks.console())"


def test_steps_that_nobody_writes_are_not_run() -> None:
    p = pen.Pipeline("a")
    stream = hand(p)
    stream.key_by("k").aggregate(n=pen.count(), name="unused")
    stream.write(Collect())
    assert p.plan().stateful == ()


def test_dead_letters_have_a_schema_of_their_own() -> None:
    p = pen.Pipeline("a", on_error="dead-letter")
    assert p.dead_letters.schema.names == ["step", "source", "split", "position", "error", "record", "event_time"]
    assert p.dead_letters.filter("step = 'x'").select("error").schema.names == ["error"]


def test_the_dead_letters_of_steps_on_dead_letters_do_not_go_round_in_circles() -> None:
    p = pen.Pipeline("a", on_error="dead-letter")
    hand(p).filter("10 / i > 1").write(Collect())
    p.dead_letters.filter("cast(record as bigint) > 1").write(Collect("dead"))
    assert p.plan().levels == 1


def test_run_wants_a_runner() -> None:
    p = pen.Pipeline("a")
    hand(p).write(Collect())
    assert (
        str(raised(lambda: p.run("local"))).partition(": ")[2]
        == "'local' is no runner\n  Write: pen.Local(), or pen.MicroBatch(), or pen.Continuous()"
    )


def test_without_a_runner_the_default_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    class Fake:
        def start(self, pipeline: pen.Pipeline, *, restore: Any) -> str:
            used.append((pipeline.name, restore))
            return "job"

        run = start

    monkeypatch.setattr(pipeline_module, "default_runner", Fake)
    p = pen.Pipeline("a")
    assert p.run() == p.start(restore="none") == "job"
    assert used == [("a", "latest"), ("a", "none")]


def test_a_pipeline_runs_and_the_same_pipeline_runs_again() -> None:
    out = sinks.memory("pipeline-twice")
    p = pen.Pipeline("twice")
    p.read(sources.memory([{"n": 1}, {"n": 2}], schema="n bigint")).select(m="n + 1").write(out)
    for _ in range(2):
        out.clear()
        job = p.run(pen.Local())
        assert out.rows() == [{"m": 2}, {"m": 3}]
        assert job.status().state == "finished"


def test_errors_point_at_the_file_of_the_user_even_if_it_lies_beside_the_package() -> None:
    from penstock.api import where

    code = compile("def call(f):\n    return f()\n", str(where._PACKAGE).rstrip("/") + "_jobs.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["call"](where.user_line) == "penstock_jobs.py:2"
