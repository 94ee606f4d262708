"""Which guarantee a source and a sink give together, and never more."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

import penstock as pen
from penstock import sinks, sources
from penstock.plan.guarantee import guarantees, label
from runtime.rig import Collect, Hand


@dataclass(frozen=True)
class Gone(Hand):
    """A source that cannot be read again."""

    replayable = False


@pytest.mark.parametrize(
    ("replayable", "kind", "expected"),
    [
        (True, "transactional", "exactly-once"),
        (True, "idempotent", "effectively-once"),
        (True, "at-least-once", "at-least-once"),
        (False, "transactional", "at-most-once"),
        (False, "idempotent", "at-most-once"),
        (False, "at-least-once", "at-most-once"),
    ],
)
def test_a_label_is_what_the_weaker_of_both_allows(replayable: bool, kind: str, expected: str) -> None:
    assert label(replayable, kind) == expected


def save(rows: pa.RecordBatchReader, epoch: pen.Epoch) -> None:
    rows.read_all()


def test_there_is_a_line_for_each_sink_and_source_that_feeds_it() -> None:
    p = pen.Pipeline("test")
    kept, gone = p.read(Hand("kept")), p.read(Gone("gone"))
    kept.write(Collect("alone"))
    kept.union(gone).write(Collect("both"))
    lines = guarantees(p.plan(), "local")
    assert lines == [
        "exactly-once     kept (Hand, replayable) -> local -> alone (Collect, transactional)",
        "exactly-once     kept (Hand, replayable) -> local -> both (Collect, transactional)",
        "at-most-once     gone (Gone, cannot be read again) -> local -> both (Collect, transactional)",
    ]


@pytest.mark.parametrize(("idempotent", "expected"), [(True, "effectively-once"), (False, "at-least-once")])
def test_a_function_is_as_good_as_it_says(idempotent: bool, expected: str) -> None:
    p = pen.Pipeline("test")
    p.read(Hand()).write(sinks.foreach_batch(save, idempotent=idempotent), name="save")
    (line,) = guarantees(p.plan(), "local")
    assert line.split()[0] == expected


def test_a_socket_is_exactly_once_only_through_its_journal() -> None:
    found = {}
    for journal in (True, False):
        p = pen.Pipeline("test")
        p.read(sources.socket("localhost", 9999, journal=journal)).write(Collect())
        (line,) = guarantees(p.plan(), "local")
        found[journal] = line.split()[0]
    assert found == {True: "exactly-once", False: "at-most-once"}


def test_the_label_is_part_of_explain_and_of_the_status_of_a_job() -> None:
    p = pen.Pipeline("test")
    p.read(sources.memory([{"k": "a"}], schema="k string")).write(sinks.memory("guarantee-out"))
    (line,) = guarantees(p.plan(), "local")
    assert f"guarantee  {line.replace('-> local ->', '-> any runner ->')}" in p.explain()
    job = p.run(pen.Local())
    assert job.status().guarantee == (line,)
