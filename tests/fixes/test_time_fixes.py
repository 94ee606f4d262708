"""The fixes of durations, shapes of windows and triggers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

import penstock as pen
from fixes.applying import argument, code_of, evaluate, shown
from fixes.streams import Streams, applied, arguments
from penstock import triggers


@pytest.mark.parametrize("value", [5, 2.5, -3])
def test_a_number_without_a_unit_may_be_seconds(value: float) -> None:
    (delay,) = argument(shown("duration.unit", lambda: pen.retry(2, delay=value)))
    assert Streams().left.with_watermark("at", delay=delay.lstrip("-"))


@pytest.mark.parametrize("value", ["5 parsecs", None, [1, 2]])
def test_each_duration_that_is_shown_is_one(value: Any) -> None:
    text = shown("duration.text", lambda: pen.retry(2, delay=value))
    for written in eval(f"({text.partition(':')[2]})"):
        assert pen.retry(2, delay=written)
    assert pen.retry(2, delay=timedelta(seconds=1))


@pytest.mark.parametrize("value", ["999999999d", "-999999999d"])
def test_the_longest_duration_is_one(value: str) -> None:
    for code in code_of(shown("duration.longest", lambda: Streams().left.with_watermark("at", delay="1s", max_ahead=value))):
        Streams().left.with_watermark("at", delay="1s", **{k: v.lstrip("-") for k, v in arguments(code).items()})


def test_a_window_goes_by_one_of_two_clocks() -> None:
    clocks = argument(shown("window.clock", lambda: pen.tumbling("1m", clock="system")))
    assert clocks == ["event", "processing"]
    for clock in clocks:
        pen.tumbling("1m", clock=clock)


def test_a_window_has_a_size() -> None:
    (code,) = code_of(shown("tumbling.size", lambda: pen.tumbling("0s")))
    assert evaluate(code) == pen.tumbling("10s")


def test_each_size_that_fits_a_wall_clock_is_taken() -> None:
    text = shown("tumbling.zone", lambda: pen.tumbling("7h", timezone="Europe/Berlin"))
    sizes = [part for part in text.split('"') if part[:1].isdigit()]
    assert sizes == ["15m", "6h", "1d", "7d"]
    for size in sizes:
        pen.tumbling(size, timezone="Europe/Berlin")
    pen.tumbling("7h")


def test_a_time_zone_has_a_name() -> None:
    for timezone in argument(shown("window.zone", lambda: pen.tumbling("1h", timezone="MEZ?"))):
        pen.tumbling("1h", timezone=timezone)


# Shapes of windows.


def test_a_class_of_windows_says_which_ones() -> None:
    class Silent(pen.WindowShape):
        pass

    class Daily(pen.WindowShape):
        def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
            start = at.replace(hour=0, minute=0, second=0, microsecond=0)
            return [(start, start + timedelta(days=1))]

    keyed = Streams().timed.key_by("user")
    assert "assign(self, at)" in shown("shape.assign", lambda: keyed.window(Silent()).aggregate(n=pen.count(), name="n"))
    keyed.window(Daily()).aggregate(n=pen.count(), name="n")
    (code,) = code_of(shown("shape.class", lambda: keyed.window(Daily)))
    applied(keyed, code, Daily=Daily).aggregate(n=pen.count(), name="n")


def test_a_window_has_a_shape() -> None:
    keyed = Streams().timed.key_by("user")
    (code,) = code_of(shown("shape.kind", lambda: keyed.window("10s")))
    applied(keyed, code)


def test_sliding_windows_have_no_zone_and_days_have() -> None:
    text = shown("sliding.zone", lambda: pen.sliding("1h", every="1m", timezone="Europe/Berlin"))
    assert text.startswith("Leave timezone= out")
    pen.sliding("1h", every="1m")
    assert evaluate(code_of(text)[0]) == pen.tumbling("1d", timezone="Europe/Berlin")


def test_a_window_of_rows_has_no_time() -> None:
    assert "Leave size out, or rows" in shown("rows-window.time", lambda: pen.tumbling("1m", rows=3))
    assert pen.tumbling("1m") != pen.tumbling(rows=3)


@pytest.mark.parametrize(("size", "every"), [("0s", "0s"), ("-1h", "1m"), ("1h", "0s")])
def test_sliding_windows_have_a_size(size: str, every: str) -> None:
    (code,) = code_of(shown("sliding.size", lambda: pen.sliding(size, every=every)))
    assert evaluate(code) == pen.sliding("1h", every="1m")


def test_windows_that_leave_gaps_are_side_by_side_of_what_is_left() -> None:
    (code,) = code_of(shown("sliding.every", lambda: pen.sliding("1m", every="1h")))
    assert evaluate(code) == pen.tumbling("1h")
    (code,) = code_of(shown("sliding.every-rows", lambda: pen.sliding(rows=3, every=10)))
    assert evaluate(code) == pen.tumbling(rows=10)


def test_a_session_has_a_gap() -> None:
    (code,) = code_of(shown("session.gap", lambda: pen.session("0s")))
    assert evaluate(code) == pen.session("30m")


@pytest.mark.parametrize("build", [lambda: pen.tumbling(rows=0), lambda: pen.sliding(rows=3, every="1m")])
def test_a_number_of_rows_is_one(build: Any) -> None:
    (code,) = code_of(shown("rows-window.rows", build))
    assert evaluate(code) is not None


# Triggers.


def window(trigger: object) -> Any:
    keyed = Streams().timed.key_by("user")
    return keyed.window(pen.tumbling("1m"), trigger=trigger, emit="update").aggregate(n=pen.count(), name="n")


def test_a_trigger_fires() -> None:
    (code,) = code_of(shown("trigger.count", lambda: triggers.after_count(0)))
    window(evaluate(code, triggers=triggers))
    codes = code_of(shown("trigger.delay", lambda: triggers.after_time("0s")))
    assert len(codes) == 2
    for code in codes:
        window(evaluate(code, triggers=triggers))


@pytest.mark.parametrize("several", [triggers.after_any, triggers.after_all, triggers.after_each])
def test_a_trigger_of_several_has_parts(several: Any) -> None:
    (code,) = code_of(shown("trigger.parts", several))
    window(evaluate(code, triggers=triggers))


def test_what_never_finishes_stands_last() -> None:
    endless = triggers.repeatedly(triggers.after_count(1))
    text = shown("trigger.endless", lambda: triggers.after_each(endless, "5s"))
    assert text == "Write it last, or once: after_count(1)"
    window(triggers.after_each(triggers.after_time("5s"), endless))
    window(triggers.after_each(triggers.after_count(1), "5s"))


def test_early_and_late_results_come_by_time_or_number() -> None:
    codes = code_of(shown("trigger.watermark", lambda: triggers.after_watermark(early=triggers.after_watermark())))
    assert len(codes) == 2
    for code in codes:
        window(triggers.after_watermark(**arguments(code)))


def test_a_trigger_is_a_time_or_a_number() -> None:
    for trigger in argument(shown("trigger.kind", lambda: window(2.5))):
        window(trigger)
