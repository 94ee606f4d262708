"""What becomes of rows that cannot be processed: by the pipeline's word, or a step's own; after one attempt or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import penstock as pen
from penstock.connectors.connector import BadRecord
from penstock.errors import PlanError, RowError
from runtime.rig import Collect, Hand, Rig, hand, table
from unplaced import unplaced

ROWS = table([{"k": "a", "i": n} for n in range(6)])


class Flaky:
    """Fails for odd numbers, a few times each."""

    def __init__(self, times: int) -> None:
        self.times, self.calls = times, Counter[int]()

    def _try(self, row: pen.Row) -> int:
        self.calls[row.i] += 1
        if row.i % 2 and self.calls[row.i] <= self.times:
            raise ConnectionError(f"attempt {self.calls[row.i]}")
        return int(row.i)

    def number(self, row: pen.Row) -> int:
        return self._try(row)

    def numbers(self, row: pen.Row) -> Iterator[int]:
        yield row.i
        yield self._try(row)

    def small(self, row: pen.Row) -> bool:
        return self._try(row) < 4


def run(p: pen.Pipeline, *, dead: bool = False) -> list[Any]:
    letters = Collect("dead")
    if dead:
        p.dead_letters.write(letters)
    rig = Rig(p.plan())
    rig.feed(ROWS, 6)
    rig.barrier(1)
    return letters.rows


@pytest.mark.parametrize(("times", "good"), [(2, [0, 1, 2, 3, 4, 5]), (3, [0, 2, 4])])
def test_a_function_is_called_again_before_its_row_is_set_aside(times: int, good: list[int]) -> None:
    flaky, out, p = Flaky(times), Collect(), pen.Pipeline("test")
    hand(p).map(flaky.number, on_error=pen.retry(3, then="dead-letter")).write(out)
    letters = run(p, dead=True)
    assert [row["value"] for row in out.rows] == good, "in the order of the rows"
    assert [unplaced(row["error"]) for row in letters] == ["ConnectionError: attempt 3"] * (6 - len(good))
    assert flaky.calls == Counter({n: 3 if n % 2 else 1 for n in range(6)})


def test_all_or_nothing_of_several_rows_is_repeated() -> None:
    flaky, out, p = Flaky(1), Collect(), pen.Pipeline("test", on_error=pen.retry(2))
    hand(p).flat_map(flaky.numbers).write(out)
    run(p)
    assert [row["value"] for row in out.rows] == [n for n in range(6) for _ in range(2)]


def test_a_filter_by_a_function_is_repeated() -> None:
    flaky, out, p = Flaky(1), Collect(), pen.Pipeline("test")
    hand(p).filter(flaky.small, on_error=pen.retry(2)).select("i").write(out)
    run(p)
    assert [row["i"] for row in out.rows] == [0, 1, 2, 3]


def test_after_the_last_attempt_the_job_stops_unless_told_otherwise() -> None:
    p = pen.Pipeline("test", on_error="dead-letter")
    hand(p).map(Flaky(9).number, on_error=pen.retry(2)).write(Collect())
    with pytest.raises(RowError, match="attempt 2"):
        run(p, dead=True)


def test_a_step_may_be_stricter_or_milder_than_its_pipeline() -> None:
    def odd(row: pen.Row) -> int:
        return Flaky(1).number(row)

    p = pen.Pipeline("test", on_error="dead-letter")
    hand(p).map(odd, on_error="fail").write(Collect())
    with pytest.raises(RowError):
        run(p, dead=True)
    q, out = pen.Pipeline("test"), Collect()
    hand(q).filter("10 / (i - 3) > -100", on_error="dead-letter").map(odd, on_error="dead-letter").write(out)
    assert len(run(q, dead=True)) == 3
    assert [row["value"] for row in out.rows] == [0, 2, 4]
    r = pen.Pipeline("test")
    hand(r).map(odd, on_error="dead-letter").write(Collect())
    with pytest.raises(PlanError, match="nothing reads that"):
        r.plan()


def test_a_source_may_set_records_aside_although_the_pipeline_stops_for_bad_rows() -> None:
    bad = (BadRecord(7, "not JSON", "{"),)
    p, letters = pen.Pipeline("test"), Collect("dead")
    p.read(Hand(), on_error="dead-letter").write(Collect())
    p.dead_letters.write(letters)
    Rig(p.plan()).feed(None, 1, bad=bad)
    assert [row["error"] for row in letters.rows] == ["not JSON"]
    q = pen.Pipeline("test")
    q.read(Hand()).write(Collect())
    with pytest.raises(RowError, match="not JSON"):
        Rig(q.plan()).feed(None, 1, bad=bad)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pen.retry(0), "retry(0) is no number of attempts, of which there is at least 1\n  Write: pen.retry(3)"),
        (lambda: pen.retry(True), "retry(True) is no number of attempts, of which there is at least 1\n  Write: pen.retry(3)"),
        (lambda: pen.retry(2, then="ignore"), 'then=\'ignore\' is not known\n  Write: then="fail", or then="dead-letter"'),
        (lambda: pen.retry(2, delay=3), 'delay=3 has no unit\n  If seconds are meant, say so. Write: delay="3s"'),
        (lambda: pen.retry(2, delay="-1s"), 'delay="-1s" is negative\n  Write: delay="1s"'),
    ],
)
def test_what_retry_cannot_mean_is_refused(build: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        build()
    assert str(caught.value) == message
