"""One thing at a time: rows that fail, timers, random numbers, two inputs, what is broadcast, and whole batches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock import col
from penstock.errors import RowError
from processing.hands import Feed

pytestmark = pytest.mark.usefixtures("backend")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seconds(time: datetime) -> float:
    return (time - EPOCH).total_seconds()


# --- rows that fail ---------------------------------------------------------------------------------------------------


class Fragile(pen.ProcessFunction):
    """Changes everything there is, then fails if the number is negative, or sends what does not fit if it is 13."""

    n = pen.ValueState(int, default=0)
    all = pen.ListState(int)
    spent = pen.AggregatingState((100 / col("value")).sum(), int)
    odd = pen.Output(int)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[str]:
        self.n.set(self.n.get() + 1)
        self.all.append(row.n)
        ctx.set_timer("soon", after="10s")
        yield f"{self.n.get()} {self.all.get()}"
        if row.n % 2:
            ctx.emit(row.n, to=self.odd)
        if row.n == 13:
            yield 13  # type: ignore[misc]
        if row.n == 15:
            ctx.emit("odd", to=self.odd)
        if row.n <= 0:
            self.spent.add(row.n)
        if row.n < 0:
            raise ValueError(f"negative: {row.n}")

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> str:
        self.all.clear()
        if ctx.key == "bad":
            raise KeyError("bad")
        return f"fired {seconds(timer.at)}"


def test_a_row_that_fails_leaves_no_trace() -> None:
    feed = Feed(Fragile()).rows(("a", 1, 0), ("a", -1, 5), ("a", 2, 0))
    assert feed.sent() == ["1 [1]", "2 [1, 2]"]
    assert feed.sent("odd") == [1]
    assert feed.dead() == ["ValueError: negative: -1"]
    assert feed.watermark(14).sent() == ["fired 10.0"], "the timer of the row that failed replaced nothing"


@pytest.mark.parametrize("bad", [13, 15])
def test_a_row_that_sends_what_does_not_fit_fails_alone(bad: int) -> None:
    feed = Feed(Fragile()).rows(("a", 1, 0), ("b", bad, 0), ("a", bad, 0), ("a", 3, 0))
    assert feed.sent() == ["1 [1]", "2 [1, 3]"]
    assert feed.sent("odd") == [1, 3]
    (first, second) = feed.dead()
    assert first == second
    assert first.startswith("RowError: value: expected ")


def test_a_row_that_breaks_an_aggregate_fails_alone() -> None:
    feed = Feed(Fragile()).rows(("a", 1, 0), ("a", 0, 0), ("a", 2, 0), ("b", 0, 0))
    assert feed.sent() == ["1 [1]", "2 [1, 2]"]
    assert feed.dead() == ["RowError: spent: the input of its aggregate cannot be computed"] * 2
    feed.cut()


def test_a_timer_that_fails_is_over_and_leaves_no_trace() -> None:
    feed = Feed(Fragile()).rows(("bad", 1, 0), ("a", 1, 0)).watermark(20)
    assert feed.sent() == ["1 [1]", "1 [1]", "fired 10.0"]
    assert feed.dead() == ["on_timer: KeyError: 'bad'"]
    assert feed.rows(("bad", 2, 30)).sent() == ["2 [1, 2]"]
    assert feed.sinks["dead"].rows == []


def test_a_failure_stops_the_job_and_names_step_and_row() -> None:
    failed = r"step 'it' \(.*\) cannot process a row"
    with pytest.raises(RowError, match=failed + r": ValueError: negative: -5 \(at .*\). The row: {'k': 'a', 'n': -5"):
        Feed(Fragile(), on_error="fail").rows(("a", 1, 0), ("a", -5, 0))
    with pytest.raises(RowError, match=failed + ".*: RowError: value: expected string"):
        Feed(Fragile(), on_error="fail").rows(("a", 13, 0))
    with pytest.raises(RowError, match=failed + r": on_timer: KeyError: 'bad' \(at .*\). The row: {'k': 'bad'}"):
        Feed(Fragile(), on_error="fail").rows(("bad", 1, 0)).watermark(20)


def test_a_row_whose_timer_was_undone_does_not_disturb_the_next_batch() -> None:
    feed = Feed(Fragile()).watermark(50).rows(("a", -1, 0)).rows(*((key, 1, 0) for key in "bcdefg"))
    assert feed.dead() == ["ValueError: negative: -1"]
    assert len(feed.sent()) == 6
    assert feed.watermark(51).sent() == ["fired 10.0"] * 6


class Wrong(pen.ProcessFunction):
    n = pen.ValueState(int)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str | None:
        match row.n:
            case 1:
                ctx.set_timer("x", after="1s", clock="sun")
            case 2:
                ctx.set_timer("x")
            case 3:
                ctx.set_timer("x", at=datetime(2026, 1, 1))
            case 4:
                ctx.set_timer(7, after="1s")  # type: ignore[arg-type]
            case 5:
                ctx.emit("x", to="nowhere")
            case 6:
                ctx.set_timer("x", after="9999999d")
            case 7:
                ctx.set_timer("x", after="1s")
            case 8:
                self.n.set("x")
        return None


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "RowError: timer 'x': clock='sun' is not known\n  Write: clock=\"event\", or clock=\"processing\""),
        (2, "RowError: timer 'x': found neither after= nor at=\n  Say when, by one of them. Write: after=\"1m\""),
        (3, "RowError: timer 'x': at= must be a datetime with time zone, and is datetime.datetime(2026, 1, 1, 0, 0)"),
        (4, "RowError: the name of a timer is a string, and this is 7"),
        (
            5,
            "RowError: there is no side output 'nowhere'\n  Declare it in the class of the process function: nowhere = pen.Output(…)",
        ),
        (6, "RowError: timer 'x' would be due in a year that no datetime has"),
        (8, "RowError: n: expected bigint, and found str 'x'"),
    ],
)
def test_a_wrong_call_is_an_error_of_its_row(number: int, text: str) -> None:
    assert Feed(Timed()).rows(("a", number, 0)).dead() == [text]


class Timed(Wrong):
    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> str: ...


def test_timers_need_somebody_to_call_and_a_time() -> None:
    assert Feed(Wrong()).rows(("a", 7, 0)).dead() == [
        "RowError: timer 'x': there is no on_timer to call\n  Define: def on_timer(self, timer, ctx)"
    ]
    (error,) = Feed(Timed(), timed=False).rows(("a", 7, 0)).dead()
    assert error.startswith("RowError: timer 'x': this stream has no event time\n  Write: clock=\"processing\"")


# --- timers -----------------------------------------------------------------------------------------------------------


class Alarm(pen.ProcessFunction):
    """A row of number n sets a timer n seconds later; 0 clears it; one on the hour goes on every 10 seconds."""

    def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
        if row.n == 0:
            ctx.clear_timer("alarm")
        else:
            ctx.set_timer("every" if row.n == 60 else "alarm", after=f"{row.n}s")

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> str:
        if timer.name == "every":
            ctx.set_timer("every", after="10s")
        return f"{timer.name} {seconds(timer.at)} {ctx.watermark.year if ctx.watermark else None}"


def test_a_timer_is_replaced_by_the_next_of_its_name_and_cleared() -> None:
    feed = Feed(Alarm()).rows(
        ("a", 10, 0), ("a", 20, 0), ("b", 10, 0), ("c", 10, 0), ("c", 0, 0), ("d", 5, 0), ("d", 10, 0), ("d", 5, 0)
    )
    assert sorted(feed.watermark(4).sent()) == []
    assert sorted(feed.watermark(10).sent()) == ["alarm 10.0 1970", "alarm 5.0 1970"]
    assert feed.watermark(19).sent() == []
    assert feed.watermark(20).sent() == ["alarm 20.0 1970"]
    assert feed.end().sent() == []


def test_a_timer_that_sets_itself_again_goes_on_and_ends_with_the_input() -> None:
    feed = Feed(Alarm()).rows(("a", 60, 0)).watermark(85)
    assert feed.sent() == ["every 60.0 1970", "every 70.0 1970", "every 80.0 1970"]
    assert feed.restore().watermark(90).sent() == ["every 90.0 1970"]
    assert feed.end().sent() == ["every 100.0 9999"]


def test_timers_of_one_moment_fire_by_name_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.operators import named_timers
    from penstock.state import timers

    monkeypatch.setattr(timers, "BATCH_ROWS", 4)
    monkeypatch.setattr(named_timers, "PIECE_ROWS", 3)

    class Many(pen.ProcessFunction):
        def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
            ctx.set_timer(f"{row.n}", at=EPOCH + timedelta(seconds=10 + row.n // 4))

        def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> str:
            if timer.name == "0":
                ctx.set_timer("x", after="1500ms")
            return f"{ctx.key} {timer.name}"

    feed = Feed(Many())
    for n in (7, 2, 0, 5, 3, 1, 6, 4, 8):
        feed.rows(*((key, n, 0) for key in "abcdefg"))
    told = feed.watermark(30).sent()
    for key in "abcdefg":
        assert [text[2:] for text in told if text[0] == key] == ["0", "1", "2", "3", "4", "5", "6", "7", "x", "8"]


def test_what_a_timer_sends_is_in_time_for_a_window_behind_it() -> None:
    class Late(pen.ProcessFunction):
        def on_row(self, row: pen.Row, ctx: pen.Context) -> None:
            ctx.set_timer("x", after="1s")

        def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> str:
            return "fired"

    def counted(keyed: pen.KeyedStream) -> pen.Stream:
        fired = keyed.process(Late(), name="it")
        return fired.window(pen.tumbling("10s")).aggregate(n=pen.count(), name="n").select("n")

    feed = Feed(counted).watermark(50).rows(("a", 1, 0)).watermark(51)
    assert feed.watermark(70).sent() == [1]


# --- the context ------------------------------------------------------------------------------------------------------


class Watching(pen.ProcessFunction):
    brief = pen.ValueState(int, ttl="10s")

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        before = self.brief.get()
        self.brief.set(row.n)
        watermark = None if ctx.watermark is None else seconds(ctx.watermark)
        return f"{ctx.key} {seconds(ctx.event_time)} {watermark} {before} {ctx.step}"  # type: ignore[arg-type]


def test_the_watermark_and_what_it_made_forget_are_the_same_after_a_restore() -> None:
    feed = Feed(Watching()).rows(("a", 1, 5)).watermark(20)
    assert feed.sent() == ["a 5.0 None None it"]
    feed.restore(2)
    assert feed.rows(("a", 2, 6)).sent() == ["a 6.0 20.0 None it"], "it is late, and what expired before the watermark is gone"


class Clock(pen.ProcessFunction):
    brief = pen.ValueState(int, ttl="10s", clock="processing")

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        before = self.brief.get()
        self.brief.set(row.n)
        return f"{seconds(ctx.now)} {before}"


def test_the_time_of_day_never_goes_back() -> None:
    feed = Feed(Clock()).tick(100).rows(("a", 1, 0))
    assert feed.tick(105).rows(("a", 2, 0)).sent() == ["100.0 None", "105.0 1"]
    assert feed.restore(2).rows(("a", 3, 0)).sent() == ["105.0 2"]
    assert feed.tick(50).rows(("a", 4, 0)).sent() == ["105.0 3"], "the clock of another machine is behind"
    assert feed.tick(115).rows(("a", 5, 0)).sent() == ["115.0 None"]


class Draws(pen.ProcessFunction):
    def on_row(self, row: pen.Row, ctx: pen.Context) -> Iterator[float]:
        if row.n:
            yield ctx.random.random()
            yield ctx.random.gauss()


def test_random_numbers_depend_on_step_key_and_how_often_it_drew() -> None:
    rows = [("a", 1, 0), ("b", 1, 0), ("a", 0, 0), ("a", 1, 0), ("b", 1, 0)]
    whole = Feed(Draws()).rows(*rows).sent()
    feed = Feed(Draws())
    single = [drawn for row in rows for drawn in feed.restore(2).rows(row).sent()]
    assert whole == single
    assert len(set(whole)) == len(whole)


# --- what is broadcast ------------------------------------------------------------------------------------------------


class Limits(pen.ProcessFunction):
    limits = pen.BroadcastState(str, int)
    seen = pen.ValueState(int, default=0)

    def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
        if row.n == -1:
            self.limits.set("x", 1)
        return f"{row.k} {dict(self.limits.items())} {self.limits.get('x', 0)} {len(self.limits)} {'x' in self.limits}"

    def on_broadcast(self, row: pen.Row, ctx: pen.Context) -> None:
        self.limits.set(row.k, row.n)
        match row.n:
            case -1:
                raise ValueError("no limit")
            case -2:
                ctx.emit("x")
            case -3:
                self.seen.set(1)
            case -4:
                ctx.random.random()
            case -5:
                ctx.set_timer("x", after="1s", clock="processing")
            case -6:
                assert ctx.key
            case 0:
                self.limits.remove(row.k)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> str: ...


KEYS = [(key, 0, 0) for key in "abcdefgh"]


def test_what_is_broadcast_is_the_same_on_every_task_and_at_every_parallelism() -> None:
    feed = Feed(Limits(), second="broadcast", parallelism=3)
    feed.rows(("z", 1, 0), ("x", 2, 0), ("gone", 3, 0), ("gone", 0, 0), to="right")
    for parallelism in (None, 1, 2, 3, 1):
        if parallelism:
            feed.restore(parallelism)
        assert sorted(feed.rows(*KEYS).sent()) == [f"{key} {{'x': 2, 'z': 1}} 2 2 True" for key, _, _ in KEYS]
    feed.rows(("x", 5, 0), ("z", 0, 0), to="right").restore(2)
    assert sorted(feed.rows(*KEYS).sent()) == [f"{key} {{'x': 5}} 5 1 True" for key, _, _ in KEYS]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-1, "ValueError: no limit"),
        (-2, "RowError: on_broadcast runs on every task, so each would send this row\n  Send it from on_row"),
        (-3, "RowError: state 'seen' is by key, and there is none here: on_broadcast and on_batch have no current key"),
        (-4, "RowError: random numbers are by key, and there is none here"),
        (-5, "RowError: timer 'x' is by key, and there is none here: on_broadcast and on_batch have no current key"),
        (-6, "RowError: there is no key here: on_broadcast and on_batch have no current key"),
    ],
)
def test_a_broadcast_row_that_fails_is_one_dead_letter_and_undone_on_every_task(number: int, text: str) -> None:
    feed = Feed(Limits(), second="broadcast", parallelism=3).rows(("x", 1, 0), ("x", number, 0), ("y", 2, 0), to="right")
    (error,) = feed.dead()
    assert error.startswith(text)
    assert {row.partition(" ")[2] for row in feed.rows(*KEYS).sent()} == {"{'x': 1, 'y': 2} 1 2 True"}


def test_only_on_broadcast_may_change_what_is_broadcast() -> None:
    (error,) = Feed(Limits(), second="broadcast").rows(("a", -1, 0)).dead()
    assert error == "RowError: 'limits' is the same on every task, so only on_broadcast may change it, which runs on every task"


def test_keys_of_what_is_broadcast_may_be_of_any_type_of_keys() -> None:
    from decimal import Decimal

    class Rules(pen.ProcessFunction):
        days = pen.BroadcastState(datetime, list[datetime])
        sums = pen.BroadcastState(Decimal, float)

        def on_row(self, row: pen.Row, ctx: pen.Context) -> str:
            return f"{self.days.get(EPOCH)} {self.sums.get(Decimal(1))}"

        def on_broadcast(self, row: pen.Row, ctx: pen.Context) -> None:
            self.days.set(EPOCH, [EPOCH])
            self.sums.set(Decimal(1), 2)

    feed = Feed(Rules(), second="broadcast").rows(("x", 1, 0), to="right")
    before = feed.rows(("a", 1, 0)).sent()
    assert before == [f"{[EPOCH]} 2.0"]
    assert feed.restore(2).rows(("a", 1, 0)).sent() == before


# --- two inputs -------------------------------------------------------------------------------------------------------


class Pairs(pen.ProcessFunction):
    left = pen.ListState(int)

    def on_left(self, row: pen.Row, ctx: pen.Context) -> None:
        self.left.append(row.n)

    def on_right(self, row: pen.Row, ctx: pen.Context) -> str:
        return f"{ctx.key} {self.left.get()} {row.n}"


@pytest.mark.parametrize("parallelism", [1, 2])
def test_two_inputs_share_the_state_of_a_key(parallelism: int) -> None:
    feed = Feed(Pairs(), second="keyed", parallelism=parallelism).rows(("a", 1, 0), ("b", 2, 0)).rows(("a", 3, 0), to="right")
    assert feed.sent() == ["a [1] 3"]
    assert feed.restore(3 - parallelism).rows(("a", 4, 0)).rows(("a", 5, 0), to="right").sent() == ["a [1, 4] 5"]


def test_in_order_of_time_rows_of_two_inputs_are_mixed() -> None:
    feed = (
        Feed(Pairs(), second="keyed", order="event-time")
        .rows(("a", 3, 3), ("a", 1, 1))
        .rows(("a", 20, 2), ("a", 40, 4), to="right")
    )
    assert feed.sent() == []
    assert feed.restore(2).watermark(3).sent() == ["a [1] 20"]
    assert feed.end().sent() == ["a [1, 3] 40"]


# --- whole batches ----------------------------------------------------------------------------------------------------


class Sums(pen.ProcessFunction):
    """A running sum per key over whole batches."""

    total = pen.ValueState(int, default=0)

    def on_batch(self, keys: Any, batch: pa.RecordBatch, ctx: pen.Context) -> pa.RecordBatch | None:
        if batch.column("n").null_count:
            self.total.clear_many(keys)
            return batch.select(["k", "n"])
        totals = dict(zip(batch.column("k").to_pylist(), self.total.get_many(keys).to_pylist()))
        running = []
        for key, n in zip(batch.column("k").to_pylist(), batch.column("n").to_pylist()):
            totals[key] += n
            running.append(totals[key])
        self.total.set_many(keys, running)
        match batch.column("n")[0].as_py():
            case -1:
                raise ValueError("minus one")
            case -2:
                return batch.select(["n"])
            case -3:
                return batch.select(["k", "n"]).slice(1)
            case -4:
                ctx.emit({"k": "x", "n": 1})
            case -5:
                return pa.record_batch({"k": batch.column("k"), "n": pc.cast(batch.column("n"), pa.string())})
        return pa.record_batch({"k": batch.column("k"), "n": pa.array(running)})


def test_whole_batches_read_and_write_state_at_once() -> None:
    feed = Feed(Sums(), schema="k string, n bigint")
    assert feed.rows(("a", 1, 0), ("b", 2, 0), ("a", 3, 0)).sent() == [("a", 1), ("b", 2), ("a", 4)]
    assert feed.restore(2).rows(("a", 1, 0), ("b", 1, 0)).sent() == [("a", 5), ("b", 3)]
    assert feed.rows(("a", None, 0)).rows(("a", 1, 0)).sent() == [("a", None), ("a", 1)]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (-1, "step 'it': on_batch raised ValueError: minus one"),
        (-2, r"step 'it': on_batch must give batches with the columns \['k', 'n'\], and gave \['n'\]"),
        (-3, "step 'it': on_batch got 1 rows with event time and gave 0: whose time would they have"),
        (
            -4,
            "step 'it': on_batch raised RowError: rows are sent for a key, and there is none here\n  Return from on_batch what it sends",
        ),
    ],
)
def test_a_batch_that_fails_stops_the_job(number: int, text: str) -> None:
    with pytest.raises(RowError, match=text):
        Feed(Sums(), schema="k string, n bigint").rows(("a", number, 0))


def test_what_on_batch_gives_must_fit() -> None:
    with pytest.raises(RowError, match="step 'it': on_batch gave a null in 'n', and the column is not null"):
        Feed(Sums(), schema="k string, n bigint not null").rows(("a", None, 0))
