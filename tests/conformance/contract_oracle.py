"""The answer of the case `states`, in plain Python. Imports nothing of Penstock."""

from __future__ import annotations

from collections import Counter
from typing import Any

from conformance import data
from conformance.oracle import Inputs, Rows, committed, grouped, micros, once, same, total
from unplaced import unplaced

QUIET_US, NEAR_US = 900_000, 1_500_000


def check(inputs: Inputs, out: str) -> None:
    events = data.everything(inputs["events"])
    told: dict[Any, Any] = {}
    alarms: dict[Any, Any] = {}
    for k, rows in grouped(events, lambda r: r["k"]).items():
        rows.sort(key=lambda r: r["at"])
        assert len({r["at"] for r in rows}) == len(rows), "no two rows of a key have the same time, so their order is known"
        follow(k, [r for r in rows if not fails(r)], told, alarms)
    assert len(alarms) >= 50, f"only {len(alarms)} alarms"
    assert {values[2] for values in told.values()} >= {1, 2, 3}, "what is forgotten differs"
    found = committed(f"{out}/main")
    for row in found:
        row["recent"], row["words"] = tuple(row["recent"]), tuple(row["words"])
    names = ("seen", "today", "near", "recent", "words", "highest", "total")
    same(once(found, ("id",), names, "rows"), told, "rows")
    rung = {(r["k"], micros(r["at"])): (r["seen"], tuple(r["recent"])) for r in committed(f"{out}/alarms")}
    assert len(rung) == len(committed(f"{out}/alarms")), "no alarm twice"
    same(rung, alarms, "alarms")
    good = grouped([r for r in events if not fails(r)], lambda r: r["k"])
    check_ticks(good, committed(f"{out}/ticks"))
    rules = data.everything(inputs["rules"])
    ruled = {(k,): (len(rows), len({r["k"] for r in rules}), total(rules)) for k, rows in good.items()}
    same(once(committed(f"{out}/ruled"), ("k",), ("seen", "rules", "total"), "ruled"), ruled, "ruled")
    letters = Counter(unplaced(r["error"]) for r in committed(f"{out}/dead"))
    expected = [f"ValueError: not {r['id']}" for r in events if fails(r)]
    expected += [f"on_timer: ValueError: not {k}" for k, rows in good.items() if any(r["small"] == 1 and r["flag"] for r in rows)]
    same(dict(letters), dict(Counter(expected)), "dead letters")
    check_batches(events, committed(f"{out}/batches"))


def fails(row: data.Row) -> bool:
    return bool(row["small"] == 3 and row["flag"])


def follow(k: str, rows: Rows, told: dict[Any, Any], alarms: dict[Any, Any]) -> None:
    """What the rows of one key do, one after the other."""
    recent: list[str] = []
    words: dict[str, int] = {}
    near, last, quiet = 0, None, None
    for n, row in enumerate([*rows, None], 1):
        if quiet is not None and (row is None or row["at"] > quiet):
            alarms[k, quiet] = (n - 1, tuple(recent))
            recent, words, quiet = [], {}, None
        if row is None:
            return
        at = row["at"]
        near = 1 if last is None or last + NEAR_US <= at else near + 1
        last = at
        recent.append(row["id"])
        for word in row["text"].split():
            words[word] = words.get(word, 0) + 1
        so_far = [r["v"] for r in rows[:n] if r["v"] is not None]
        sums = (max(so_far), sum(so_far)) if so_far else (None, None)
        told[row["id"],] = (n, n, near, tuple(recent), tuple(f"{word} {count}" for word, count in words.items()), *sums)
        quiet = None if row["small"] == 2 and row["flag"] else at + QUIET_US


def check_ticks(good: dict[Any, Rows], ticks: Rows) -> None:
    """Timers of the clock: none early but those that the end lets fire, none twice, and the last of a key has seen all its rows."""
    assert {r["name"] for r in ticks} == {"soon", "later"}
    assert all(r["seen"] == len(good[r["k"]]) for r in ticks if r["early"]), "a timer fired early, and not at the end"
    assert all(0 <= r["blink"] <= r["seen"] for r in ticks)
    later = once([r for r in ticks if r["name"] == "later"], ("k",), ("seen",), "timers that are pending at the end")
    same(later, {(k,): (len(rows),) for k, rows in good.items()}, "timers that are pending at the end")
    soon = grouped([r for r in ticks if r["name"] == "soon"], lambda r: r["k"])
    same({k: max(r["seen"] for r in rows) for k, rows in soon.items()}, {k: len(rows) for k, rows in good.items()}, "last ticks")
    for k, rows in soon.items():
        counts = [r["seen"] for r in rows]
        assert len(set(counts)) == len(counts), f"{k}: a timer fires once for the row that set it, and these saw {counts}"


def check_batches(events: Rows, batches: Rows) -> None:
    """A row for each row; of a key those of its last batch have seen all."""
    assert len(batches) == len(events)
    ids = {r["id"]: r["k"] for r in events}
    assert all(ids[r["last"]] == r["k"] and r["kind"] is not None for r in batches)
    done = grouped(batches, lambda r: r["k"])
    for k, rows in grouped(events, lambda r: r["k"]).items():
        numbers = [r["v"] or 0 for r in rows]
        last = max(done[k], key=lambda r: r["n"])
        found = last["n"], last["highest"], last["total"], len(done[k])
        assert found == (len(rows), max(numbers), sum(numbers), len(rows)), f"{k}: {found}"
