"""Windows at their boundaries, and against references that go row by row (or minute by minute) in plain Python."""

from __future__ import annotations

import bisect
import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock import shapes, windows
from penstock.errors import PlanError, RowError
from penstock.windows import TIME_MAX, TIME_MIN, Custom, WindowShape, closing, running, session, shape_of, sliding, tumbling

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR, DAY, MINUTE = 3_600_000_000, 86_400_000_000, 60_000_000
YEAR_1, YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns", "America/Havana", "America/Sao_Paulo"]
LOCAL_SIZES = [5 * MINUTE, 15 * MINUTE, 40 * MINUTE, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY]

anywhen = st.integers(YEAR_1, YEAR_9999)


def us(text: str, zone: str = "UTC") -> int:
    return micros_of(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


def micros_of(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def lists(assigned: tuple[Any, Any, Any]) -> list[Any]:
    return [None if column is None else column.tolist() for column in assigned]


def hours_of_windows(shape: Any, first: int, last: int) -> list[float]:
    """The lengths of the windows that begin between two instants, in hours. Neighbours must touch."""
    lengths = []
    at = first
    while at < last:
        _, starts, ends = shape.assign(ints(at))
        assert starts[0] == at, "a window begins where the one before ends"
        lengths.append((int(ends[0]) - at) / HOUR)
        at = int(ends[0])
    return lengths


# -- tumbling


def test_a_time_at_the_end_of_a_window_lies_in_the_next_also_before_1970() -> None:
    shape = tumbling("10us")
    assert lists(shape.assign(ints(-11, -10, -1, 0, 9, 10))) == [None, [-20, -10, -10, 0, 0, 10], [-10, 0, 0, 10, 10, 20]]
    assert lists(tumbling("10us", offset="3us").assign(ints(2, 3, 12, 13)))[1] == [-7, 3, 3, 13]


def test_an_empty_batch_lies_in_no_window() -> None:
    shapes = [tumbling("1d"), tumbling("1d", timezone="Europe/Berlin"), tumbling("1h", timezone="Europe/Berlin"), session("1s")]
    for shape in [*shapes, sliding("2s", every="1s"), tumbling(rows=3), sliding(rows=3, every=2), running(), Custom(Halves())]:
        assert [len(column) for column in shape.assign(ints()) if column is not None] in ([0, 0], [0, 0, 0])


def test_the_first_and_the_last_moment_of_the_calendar_have_windows() -> None:
    for size in LOCAL_SIZES:
        for zone in [None, "Europe/Berlin", "Pacific/Kiritimati", "Pacific/Pago_Pago"]:
            shape = windows.Tumbling(size, timezone=zone)
            _, starts, ends = shape.assign(ints(YEAR_1, YEAR_9999))
            assert (starts <= ints(YEAR_1, YEAR_9999)).all()
            assert (ints(YEAR_1, YEAR_9999) < ends).all()


@pytest.mark.parametrize(
    ("zone", "day", "length"),
    [
        ("Europe/Berlin", "2024-03-31", 23),
        ("Europe/Berlin", "2024-10-27", 25),
        ("Europe/Berlin", "2024-06-01", 24),
        ("America/New_York", "2024-03-10", 23),
        ("America/New_York", "2024-11-03", 25),
        ("Australia/Lord_Howe", "2024-10-06", 23.5),
        ("Australia/Lord_Howe", "2024-04-07", 24.5),
    ],
)
def test_a_local_day_is_as_long_as_its_clocks_make_it(zone: str, day: str, length: float) -> None:
    first = us(day, zone)
    shape = tumbling("1d", timezone=zone)
    assert hours_of_windows(shape, first, first + 26 * HOUR)[0] == length
    next_midnight = micros_of(datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) + timedelta(days=1))
    assert lists(shape.assign(ints(first - 1, first, next_midnight - 1, next_midnight)))[1][1:] == [first, first, next_midnight]


def test_six_hours_of_a_day_on_which_clocks_change_are_five_or_seven() -> None:
    shape = tumbling("6h", timezone="Europe/Berlin")
    for day, lengths in [("2024-03-31", [5, 6, 6, 6]), ("2024-10-27", [7, 6, 6, 6])]:
        first = us(day, "Europe/Berlin")
        assert hours_of_windows(shape, first, first + 20 * HOUR) == lengths


def test_hours_stay_hours_where_clocks_move_by_an_hour_but_not_where_they_move_by_half() -> None:
    for day in ("2024-03-31", "2024-10-27"):
        first = us(day, "Europe/Berlin")
        assert set(hours_of_windows(tumbling("1h", timezone="Europe/Berlin"), first, first + DAY)) == {1}
    island = tumbling("1h", timezone="Australia/Lord_Howe")
    back, forth = us("2024-04-07", "Australia/Lord_Howe"), us("2024-10-06", "Australia/Lord_Howe")
    assert hours_of_windows(island, back, back + 4 * HOUR) == [1, 1.5, 1, 1]
    assert hours_of_windows(island, forth, forth + 4 * HOUR) == [1, 1, 0.5, 1, 1]


def test_a_date_that_was_left_out_has_no_window_and_one_that_came_twice_has_one() -> None:
    samoa = us("2011-12-29", "Pacific/Apia")  # the 30th did not exist there
    assert hours_of_windows(tumbling("1d", timezone="Pacific/Apia"), samoa, samoa + 3 * DAY) == [24, 24, 24]
    alaska = tumbling("1d", timezone="America/Juneau").assign(ints(us("1867-10-19")))
    assert (alaska[2] - alaska[1]).tolist() == [48 * HOUR]


def test_a_day_begins_once_where_clocks_go_back_over_midnight() -> None:
    shape = tumbling("1d", timezone="America/St_Johns")  # 2009-11-01 00:01 became 2009-10-31 23:01
    first = us("2009-11-01", "America/St_Johns")
    assert hours_of_windows(shape, first, first + DAY) == [25]
    again = first + 30 * MINUTE  # the clock shows the 31st once more
    assert lists(shape.assign(ints(first - 1, first, again))) == [
        None,
        [first - DAY, first, first],
        [first, *[first + 25 * HOUR] * 2],
    ]


def test_a_window_may_begin_in_the_last_microsecond_before_clocks_change() -> None:
    change = us("2024-03-31T01:00")  # Berlin: 02:00 becomes 03:00
    shape = tumbling("2h", offset="-1us", timezone="Europe/Berlin")
    assert shape.assign(ints(change - 2, change - 1, change))[1].tolist() == [change - 2 * HOUR - 1, change - 1, change - 1]


def test_a_local_offset_is_on_the_wall_clock() -> None:
    shape = tumbling("1d", offset="6h", timezone="Europe/Berlin")
    assert shape.assign(ints(us("2024-07-01T12:00", "Europe/Berlin")))[1].tolist() == [us("2024-07-01T06:00", "Europe/Berlin")]
    assert shape.assign(ints(us("2024-12-01T05:00", "Europe/Berlin")))[1].tolist() == [us("2024-11-30T06:00", "Europe/Berlin")]


@functools.cache
def changes(zone: str, year: int) -> list[int]:
    """The instants of a year at which the clocks of a zone change; its first noon if there are none."""
    tz = ZoneInfo(zone)

    def offset(second: int) -> timedelta | None:
        return (EPOCH + timedelta(seconds=second)).astimezone(tz).utcoffset()

    noon = micros_of(datetime(year, 1, 1, 12, tzinfo=UTC)) // 1_000_000
    days = [day for day in range(noon, noon + 365 * 86_400, 86_400) if offset(day) != offset(day + 86_400)]
    found = [
        bisect.bisect_left(range(day, day + 86_400), True, key=lambda s, day=day: offset(s) != offset(day)) + day for day in days
    ]
    return [second * 1_000_000 for second in found or [noon]]


@st.composite
def near_a_change(draw: st.DrawFn, zone: str, first_year: int = 1) -> int:
    at = draw(st.sampled_from(changes(zone, draw(st.integers(first_year, 2060)))))
    return at + draw(st.one_of(st.integers(-2, 2), st.integers(-2 * HOUR, 2 * HOUR), st.integers(-2 * DAY, 2 * DAY)))


@given(
    st.data(),
    st.sampled_from(ZONES),
    st.sampled_from([*LOCAL_SIZES, 7 * DAY, 400 * DAY]),
    st.sampled_from([0, -1, HOUR]) | st.integers(0, DAY),
)
@settings(max_examples=200, deadline=None)
def test_each_instant_lies_in_exactly_one_local_window(data: st.DataObject, zone: str, size: int, offset: int) -> None:
    shape = windows.Tumbling(size, offset, zone)
    at = np.array(data.draw(st.lists(st.one_of(anywhen, near_a_change(zone), near_a_change(zone, 1900)), max_size=8)), np.int64)
    _, starts, ends = shape.assign(at)
    assert (starts <= at).all()
    assert (at < ends).all()
    for same in (starts, ends - 1):
        assert lists(shape.assign(same)) == [None, starts.tolist(), ends.tolist()]
    assert shape.start_of(ends).tolist() == ends.tolist()
    assert shape.end_of(starts).tolist() == ends.tolist()


def local_window(zone: str, size: int, offset: int, time: int) -> tuple[int, int]:
    """Rules 1 and 2 of `localtime.py`, minute by minute. (Since 1975 clocks change at whole minutes.)"""
    tz = ZoneInfo(zone)
    minute = time // MINUTE * MINUTE - size - 2 * DAY
    reading = last_offset = None
    starts: list[int] = []
    latest = cell = None
    while not (starts and starts[-1] > time):
        shown = (EPOCH + timedelta(microseconds=minute)).astimezone(tz).utcoffset()
        assert shown is not None
        now = shown // timedelta(microseconds=1)
        if reading is None or last_offset is None:
            reading = minute + now
        else:
            reading += MINUTE
            if size >= DAY or (now - last_offset) % size:
                reading += now - last_offset
        last_offset = now
        if latest is None or reading > latest:
            latest = reading
            if cell is not None and (reading - offset) // size != cell:
                starts.append(minute)
            cell = (reading - offset) // size
        minute += MINUTE
    return starts[-2], starts[-1]


@given(st.data(), st.sampled_from(ZONES), st.sampled_from(LOCAL_SIZES), st.sampled_from([0, 6 * HOUR, 35 * MINUTE]))
@settings(max_examples=60, deadline=None)
def test_local_windows_are_those_of_a_walk_minute_by_minute(data: st.DataObject, zone: str, size: int, offset: int) -> None:
    time, other = data.draw(near_a_change(zone, 1976)), data.draw(anywhen)
    _, starts, ends = windows.Tumbling(size, offset, zone).assign(ints(time, other))
    assert (int(starts[0]), int(ends[0])) == local_window(zone, size, offset, time)


# -- sliding


@st.composite
def slides(draw: st.DrawFn) -> windows.Sliding:
    size = draw(st.integers(1, 30))
    return windows.Sliding(size, draw(st.integers(1, size)), draw(st.integers(-40, 40)))


def all_windows(shape: windows.Sliding, low: int, high: int) -> list[tuple[int, int]]:
    """Every window that begins between two times."""
    return [(start, start + shape.size) for start in range(low, high) if (start - shape.offset) % shape.every == 0]


@given(slides(), st.lists(st.integers(-100, 100), max_size=10))
def test_sliding_windows_are_all_windows_that_hold_the_time(shape: windows.Sliding, times: list[int]) -> None:
    every = all_windows(shape, -200, 200)
    expected = [(row, *window) for row, time in enumerate(times) for window in every if window[0] <= time < window[1]]
    rows, starts, ends = shape.assign(np.array(times, np.int64))
    assert list(zip(rows.tolist(), starts.tolist(), ends.tolist())) == expected
    assert [column.tolist() for column in shape.windows_of(np.array(times, np.int64))] == [rows.tolist(), starts.tolist()]
    for count in np.bincount(rows, minlength=len(times)).tolist():
        assert shape.size // shape.every <= count <= -(-shape.size // shape.every)


@given(slides(), st.integers(-100, 100))
def test_times_of_one_slice_share_their_windows_and_slices_make_up_windows(shape: windows.Sliding, time: int) -> None:
    (start,) = shape.slice_of(ints(time)).tolist()
    assert start <= time < start + shape.slice
    alike = [shape.windows_of(ints(each))[1].tolist() for each in range(start, start + shape.slice)]
    assert alike == [alike[0]] * shape.slice
    holding = np.array(alike[0], np.int64)
    slices = shape.slices_of(holding)
    assert slices.shape == (len(holding), shape.size // shape.slice)
    for window, parts in zip(holding.tolist(), slices.tolist()):
        covered = [each for part in parts for each in range(part, part + shape.slice)]
        assert covered == list(range(window, window + shape.size))
        assert shape.slice_of(np.array(parts, np.int64)).tolist() == parts
        assert start in parts


@given(slides(), st.integers(-100, 100), st.one_of(st.integers(-200, 200), st.sampled_from([TIME_MIN, TIME_MAX])))
def test_the_first_end_after_a_floor_is_the_least_of_those_that_hold_the_slice(
    shape: windows.Sliding, time: int, floor: int
) -> None:
    start = shape.slice_of(ints(time))
    ends = [
        window[1] for window in all_windows(shape, -200, 200) if window[0] <= start[0] and start[0] + shape.slice <= window[1]
    ]
    expected = [min([end for end in ends if end - 1 > floor], default=TIME_MAX)]
    assert shape.first_end_after(start, floor).tolist() == expected
    assert shape.first_end_after(start, ints(floor)).tolist() == expected


def test_sliding_windows_exist_in_the_years_1_and_9999() -> None:
    shape = sliding("1d", every="7h")
    rows, starts, ends = shape.assign(ints(YEAR_1, YEAR_9999))
    assert set(np.bincount(rows).tolist()) <= {3, 4}
    times = ints(YEAR_1, YEAR_9999)[rows]
    assert ((starts <= times) & (times < ends)).all()


# -- sessions


def meeting(keys: list[int], spans: list[tuple[int, int]]) -> list[set[int]]:
    """Groups of windows that meet, by joining any two until nothing changes."""
    groups = [{i} for i in range(len(keys))]
    changed = True
    while changed:
        changed = False
        for a in groups:
            for b in groups:
                if a is not b and any(
                    keys[i] == keys[j] and spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1] for i in a for j in b
                ):
                    a |= b
                    groups.remove(b)
                    changed = True
                    break
            if changed:
                break
    return groups


def test_rows_exactly_a_gap_apart_are_two_sessions_and_a_microsecond_less_makes_one() -> None:
    shape = session("30m")
    for apart, count in [(30 * MINUTE - 1, 1), (30 * MINUTE, 2), (30 * MINUTE + 1, 2)]:
        _, starts, ends = shape.assign(ints(0, apart))
        groups, merged, merged_ends = shape.merge(ints(5, 5), starts, ends)
        assert len(merged) == count
        assert merged_ends[-1] == apart + 30 * MINUTE
        assert groups.tolist() == [0, count - 1]


def test_a_short_window_within_a_long_one_does_not_hide_its_end() -> None:
    groups, starts, ends = windows.Session.merge(ints(1, 1, 1), ints(0, 10, 50), ints(100, 20, 60))
    assert (groups.tolist(), starts.tolist(), ends.tolist()) == ([0, 0, 0], [0], [100])


@pytest.mark.parametrize("few", [-1, 64])
@given(protos=st.lists(st.tuples(st.integers(-2, 2), st.integers(-30, 30), st.integers(1, 12)), max_size=14))
def test_sessions_merge_as_if_any_two_that_meet_were_joined(few: int, protos: list[tuple[int, int, int]]) -> None:
    keys, spans = [key for key, _, _ in protos], [(start, start + length) for _, start, length in protos]
    columns = [np.array(column, np.int64) for column in (keys, [a for a, _ in spans], [b for _, b in spans])]
    with mock.patch.object(shapes, "_FEW", few):
        groups, starts, ends = windows.Session.merge(*columns)
    expected = meeting(keys, spans)
    assert sorted(map(sorted, expected)) == sorted(np.flatnonzero(groups == g).tolist() for g in range(len(starts)))
    for members in expected:
        group = groups[min(members)]
        assert starts[group] == min(spans[i][0] for i in members)
        assert ends[group] == max(spans[i][1] for i in members)
    first = [(keys[groups.tolist().index(g)], int(starts[g])) for g in range(len(starts))]
    assert first == sorted(first), "groups are numbered by key, then time"


# -- by count, and running


@given(st.integers(1, 12), st.lists(st.integers(0, 60), max_size=8))
def test_count_windows_hold_so_many_rows(rows: int, ordinals: list[int]) -> None:
    _, starts, ends = windows.CountTumbling(rows).assign(np.array(ordinals, np.int64))
    assert starts.tolist() == [ordinal // rows * rows for ordinal in ordinals]
    assert (ends - starts).tolist() == [rows] * len(ordinals)


@given(st.data(), st.integers(1, 12), st.lists(st.integers(0, 40), max_size=8))
def test_sliding_count_windows_end_behind_every_so_many_rows(data: st.DataObject, rows: int, ordinals: list[int]) -> None:
    shape = windows.CountSliding(rows, data.draw(st.integers(1, rows)))
    every = [end for end in range(1, 100) if end % shape.every == 0]
    expected = [
        (at, max(end - rows, 0), end) for at, ordinal in enumerate(ordinals) for end in every if end - rows <= ordinal < end
    ]
    found, starts, ends = shape.assign(np.array(ordinals, np.int64))
    assert list(zip(found.tolist(), starts.tolist(), ends.tolist())) == expected
    for end, slices in zip(ends.tolist(), shape.slices_of(ends).tolist()):
        held = [ordinal for slice in slices for ordinal in range(slice, slice + shape.slice)]
        assert held == list(range(end - rows, end)), "the slices of a window are its rows, each once"


def test_the_running_window_closes_only_at_the_end_of_the_input() -> None:
    rows, starts, ends = running().assign(ints(YEAR_1, 0, YEAR_9999))
    assert (rows, starts.tolist(), ends.tolist()) == (None, [TIME_MIN] * 3, [TIME_MAX] * 3)
    assert closing(ends, 0).tolist() == [TIME_MAX - 1] * 3
    assert closing(ends, DAY).tolist() == [TIME_MAX] * 3
    assert closing(ints(10, -10), 5).tolist() == [14, -6]


# -- shapes of the user's own


@dataclass(frozen=True)
class Halves(WindowShape):
    """Months cut at the 16th, and from the 20th on also the whole month."""

    def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
        first = at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        middle, end = first.replace(day=16), (first + timedelta(days=32)).replace(day=1)
        half = [(first, middle)] if at < middle else [(middle, end)]
        return [*half, (first, end)] if at.day >= 20 else half


class Fixed(WindowShape):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def assign(self, at: datetime) -> Any:
        return self.answer


def test_a_shape_of_ones_own_is_asked_once_per_distinct_time() -> None:
    asked = []

    class Counting(Halves):
        def assign(self, at: datetime) -> list[tuple[datetime, datetime]]:
            asked.append(at)
            return super().assign(at)

    early, late = us("2024-02-15T23:59:59"), us("2024-02-20")
    february, middle, march = us("2024-02-01"), us("2024-02-16"), us("2024-03-01")
    shape = shape_of(Counting())
    assert lists(shape.assign(ints(early, early))) == [None, [february] * 2, [middle] * 2]
    assert asked == [EPOCH + timedelta(microseconds=early)]
    assert lists(shape.assign(ints(late, early, late))) == [
        [0, 0, 1, 2, 2],
        [february, middle, february, february, middle],
        [march, march, middle, march, march],
    ]


def test_what_a_shape_of_ones_own_answers_is_checked() -> None:
    hour = timedelta(hours=1)
    cases: list[tuple[Any, str]] = [
        ([], "expected a list of 1 to 1000 windows"),
        (None, "returned None; expected a list"),
        ([(EPOCH, EPOCH + hour)] * 1001, "expected a list of 1 to 1000 windows"),
        ([(EPOCH, EPOCH + hour)] * 2, "a window twice"),
        ([EPOCH], "expected (start, end), datetimes with a time zone"),
        ([(EPOCH.replace(tzinfo=None), EPOCH + hour)], "datetimes with a time zone"),
        ([(EPOCH, EPOCH)], "expected start <= at < end"),
        ([(EPOCH - hour, EPOCH)], "expected start <= at < end"),
        ([(EPOCH + hour, EPOCH + 2 * hour)], "expected start <= at < end"),
    ]
    for answer, message in cases:
        with pytest.raises(RowError) as caught:
            Custom(Fixed(answer)).assign(ints(0))
        assert message in str(caught.value)
    with pytest.raises(RowError, match="outside the years 1 to 9999"):
        Custom(Halves()).assign(ints(YEAR_9999 + 1))


def test_windows_of_ones_own_may_be_in_any_time_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    window = [(datetime(2024, 3, 31, tzinfo=berlin), datetime(2024, 4, 1, tzinfo=berlin))]
    _, starts, ends = Custom(Fixed(window)).assign(ints(us("2024-03-31T12:00")))
    assert (ends - starts).tolist() == [23 * HOUR]


# -- as written, as stored, as refused


def test_shapes_say_what_the_user_wrote_and_what_a_checkpoint_keeps() -> None:
    cases: list[tuple[Any, str, dict[str, Any]]] = [
        (tumbling("10s"), 'tumbling("10s")', {"shape": "tumbling", "size": 10_000_000, "offset": 0}),
        (
            tumbling("1d", offset="6h", timezone="Europe/Berlin", clock="processing"),
            'tumbling("1d", offset="6h", timezone="Europe/Berlin", clock="processing")',
            {"shape": "tumbling", "size": DAY, "offset": 6 * HOUR, "timezone": "Europe/Berlin", "clock": "processing"},
        ),
        (tumbling(rows=100), "tumbling(rows=100)", {"shape": "count_tumbling", "rows": 100}),
        (
            sliding("1h", every="1m", offset="5s"),
            'sliding("1h", every="1m", offset="5s")',
            {"shape": "sliding", "size": HOUR, "every": MINUTE, "offset": 5_000_000},
        ),
        (sliding(rows=100, every=10), "sliding(rows=100, every=10)", {"shape": "count_sliding", "rows": 100, "every": 10}),
        (session("30m", clock="processing"), 'session("30m", clock="processing")', {"shape": "session", "gap": 30 * MINUTE}),
        (running(), "running()", {"shape": "running"}),
        (shape_of(Fixed(3)), "Fixed(answer=3)", {"shape": "custom", "class": "Fixed", "fields": {"answer": "3"}}),
        (shape_of(Halves()), "Halves()", {"shape": "custom", "class": "Halves", "fields": {}}),
    ]
    for shape, text, params in cases:
        assert shape.text() == text
        assert params.items() <= shape.params().items()
        assert json.loads(json.dumps(shape.params())) == shape.params()
        assert shape_of(shape) is shape
    assert session("1s").params() != session("1s", clock="processing").params()


def test_what_shapes_have_in_common() -> None:
    facts = {
        shape.text(): (shape.merging, shape.by_rows, shape.timed, shape.clock)
        for shape in (tumbling("1s"), sliding("1s", every="1s"), session("1s", clock="processing"), tumbling(rows=1), running())
    }
    assert list(facts.values()) == [
        (False, False, True, "event"),
        (False, False, True, "event"),
        (True, False, True, "processing"),
        (False, True, False, "event"),
        (False, False, False, "event"),
    ]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: tumbling("0s"), "holds nothing\n  Give a positive size"),
        (lambda: tumbling(10), 'size=10 has no unit\n  If seconds are meant, say so. Write: size="10s"'),
        (lambda: tumbling(), "size=None is not a duration"),
        (lambda: tumbling("1s", clock="wall"), 'neither "event" nor "processing"'),
        (lambda: tumbling("7h", timezone="Europe/Berlin"), "windows of 7h fit neither into a day nor days into them"),
        (lambda: tumbling("36h", timezone="Europe/Berlin"), "windows of 36h fit neither"),
        (lambda: tumbling("1d", timezone="Berlin"), "timezone='Berlin' is not the name of a time zone"),
        (lambda: tumbling("1d", timezone="../etc/passwd"), "is not the name of a time zone"),
        (lambda: tumbling("1d", timezone=""), "is not the name of a time zone"),
        (lambda: tumbling("1d", timezone="Europe"), "is not the name of a time zone"),
        (lambda: tumbling("1d", rows=5), "a window of rows=5 has no time, so size='1d' means nothing"),
        (lambda: tumbling(rows=5, offset="1s"), "so offset='1s' means nothing"),
        (lambda: tumbling(rows=0), "rows=0 is not a number of rows\n  Write: pen.tumbling(rows=100)"),
        (lambda: tumbling(rows=True), "rows=True is not a number of rows"),
        (lambda: sliding("1h", every="0s"), "every=0us must be positive"),
        (lambda: sliding("-1h", every="1s"), "size=-1h must be positive"),
        (lambda: sliding("1m", every="1h"), "every=1h must not exceed size=1m: rows between two windows would be lost"),
        (lambda: sliding(rows=5, every=6), "every=6 must not exceed rows=5"),
        (lambda: sliding(rows=5, every="1s"), "every='1s' is not a number of rows"),
        (lambda: sliding("1d", every="1h", timezone="Europe/Berlin"), "sliding windows have one length"),
        (lambda: session("0s"), "a session with a gap of 0us has no length"),
        (lambda: session("1s", clock="x"), 'neither "event"'),
        (lambda: shape_of("10s"), "window needs a shape, and '10s' is none"),
        (lambda: shape_of(Halves), "Halves is a class of them\n  Make one of it. Write: .window(Halves())"),
        (lambda: shape_of(WindowShape()), "does not say which windows a time lies in\n  Define assign(self, at)"),
    ],
)
def test_windows_that_mean_nothing_are_refused_with_the_fix(write: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        write()
    assert message in str(caught.value)


@given(anywhen, anywhen)
def test_local_windows_do_not_depend_on_what_else_is_in_the_batch(one: int, other: int) -> None:
    assume(one != other)
    for shape in (tumbling("1h", timezone="Europe/Berlin"), tumbling("7d", timezone="Europe/Berlin")):
        together = lists(shape.assign(ints(one, other, one)))
        apart = [lists(shape.assign(ints(time))) for time in (one, other, one)]
        assert together[1:] == [[each[column][0] for each in apart] for column in (1, 2)]
