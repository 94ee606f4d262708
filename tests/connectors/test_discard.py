"""A sink that keeps nothing."""

from __future__ import annotations

from pathlib import Path

import penstock as pen
from penstock import sinks, sources


def test_what_is_discarded_was_computed_and_the_job_finishes(tmp_path: Path) -> None:
    seen: list[int] = []

    def note(n: int) -> int:
        seen.append(n)
        return n

    p = pen.Pipeline("gone")
    rows = p.read(sources.memory([{"n": 1}, {"n": 2}], schema="n bigint"))
    rows.map(note).write(sinks.discard())
    rows.key_by("n").aggregate(rows=pen.count(), name="counts").write(sinks.discard(name="updates"))
    job = p.run(pen.Local(storage=tmp_path))
    assert job.status().state == "finished"
    assert sorted(seen) == [1, 2]
    assert "discard" in p.explain()
    assert not list((tmp_path / "gone" / "staging").rglob("*.arrow"))


def test_dead_letters_that_nobody_reads_can_be_discarded() -> None:
    with sinks.memory("kept") as kept:
        p = pen.Pipeline("letters", on_error="dead-letter")
        p.read(sources.memory([{"n": 0}, {"n": 2}], schema="n bigint")).select(each="10 / n").write(kept)
        p.dead_letters.write(sinks.discard())
        p.run(pen.Local())
        assert len(kept.rows()) == 1
