"""The least of several clocks."""

from __future__ import annotations

from itertools import product

from penstock.protocol.messages import TIME_MAX, TIME_MIN
from penstock.protocol.watermarks import Minimum


def test_a_clock_that_has_not_spoken_holds_the_minimum() -> None:
    clocks = Minimum("ab")
    assert not clocks.advance("a", 10)
    assert clocks.time == TIME_MIN
    assert clocks.advance("b", 5)
    assert clocks.time == 5


def test_the_minimum_never_goes_back() -> None:
    clocks = Minimum("ab", time=7)
    clocks.advance("a", 3)
    clocks.advance("b", 4)
    assert clocks.time == 7
    clocks.advance("a", 20)
    clocks.advance("a", 9)
    clocks.advance("b", 30)
    assert clocks.time == 20, "a clock's own time does not go back either"


def test_an_idle_clock_holds_nobody_back_until_it_speaks() -> None:
    clocks = Minimum("ab")
    clocks.advance("a", 10)
    assert clocks.rest("b")
    assert clocks.time == 10
    assert clocks.advance("b", 12) is False, "active again, and ahead"
    clocks.advance("a", 20)
    assert clocks.time == 12


def test_a_clock_that_wakes_late_does_not_lower_the_minimum() -> None:
    clocks = Minimum("ab")
    clocks.rest("b")
    clocks.advance("a", 10)
    clocks.wake("b")
    clocks.advance("a", 20)
    assert clocks.time == 10, "b has said nothing yet, and holds"


def test_when_all_are_idle_time_stands_still() -> None:
    clocks = Minimum("ab")
    clocks.advance("a", 10)
    clocks.advance("b", 5)
    clocks.rest("a")
    assert clocks.rest("b")
    assert (clocks.time, clocks.idle) == (5, True)
    assert clocks.wake("a")
    assert (clocks.time, clocks.idle) == (10, False)


def test_no_clock_at_all_is_idle() -> None:
    clocks: Minimum[str] = Minimum()
    assert clocks.settle()
    assert (clocks.time, clocks.idle) == (TIME_MIN, True)


def test_an_ended_clock_does_not_end_time_while_another_is_idle() -> None:
    clocks = Minimum("ab")
    clocks.advance("b", 5)
    clocks.rest("b")
    clocks.end("a")
    assert (clocks.time, clocks.idle) == (TIME_MIN, True)
    clocks.advance("b", 7)
    assert (clocks.time, clocks.idle) == (7, False)


def test_an_ended_clock_has_reached_the_end_of_time() -> None:
    clocks = Minimum("ab")
    clocks.end("a")
    clocks.advance("b", 5)
    assert clocks.time == 5
    clocks.end("b")
    assert clocks.time == TIME_MAX


def test_clocks_added_together_do_not_run_ahead_of_each_other() -> None:
    clocks: Minimum[str] = Minimum()
    clocks.add("a", 10)
    clocks.add("b", 3)
    clocks.add("c", idle=True)
    clocks.settle()
    assert clocks.time == 3


def test_a_clone_is_independent_and_equal() -> None:
    clocks = Minimum("ab")
    clocks.advance("a", 1)
    copy = clocks.clone()
    assert copy.key() == clocks.key()
    copy.rest("b")
    assert copy.key() != clocks.key()


def test_every_short_history_agrees_with_the_rules() -> None:
    """All histories of four steps of two clocks, against the definition."""
    steps = [(id, what) for id in "ab" for what in (1, 2, "rest", "end")]
    for history in product(steps, repeat=4):
        clocks = Minimum("ab")
        times, idle, least = dict.fromkeys("ab", TIME_MIN), set(), TIME_MIN
        for id, what in history:
            before = (clocks.time, clocks.idle)
            if what == "rest":
                changed = clocks.rest(id)
                idle.add(id)
            else:
                assert what != "rest"
                said = TIME_MAX if what == "end" else int(what)
                changed = clocks.end(id) if what == "end" else clocks.advance(id, said)
                times[id] = max(times[id], said)
                idle.discard(id)
            live = [times[i] for i in "ab" if i not in idle and times[i] < TIME_MAX]
            over = all(time == TIME_MAX for time in times.values())
            least = TIME_MAX if over else max(least, min(live, default=least))
            assert (clocks.time, clocks.idle) == (least, not live and not over), history
            assert changed == ((clocks.time, clocks.idle) != before)
