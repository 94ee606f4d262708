"""The answers of the golden pipelines, in plain Python over their rows. Imports nothing of Penstock.

`expected(name, rows)` says for each folder of output how it is read and what it must hold. Times are microseconds since 1970.

how     what counts
rows    each row, as often as it stands there; none is ever withdrawn
latest  the last row of each key that was not deleted
net     rows that were not withdrawn
parts   the sum of `n` and `total` of each key
clocked the same, of rows before the cut and after it
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

S = 1_000_000
CLOCK_US = 978_307_200 * S
"""The time of day until the cut: 2001-01-01."""
END_US = 4_102_444_800 * S

Row = dict[str, Any]
Rows = dict[str, dict[str, list[Row]]]


def expected(name: str, rows: Rows) -> dict[str, Any]:
    """Folder to `{"how": …, "keys": …, "rows": …}`."""
    functions: dict[str, Callable[[Rows], dict[str, Any]]] = {
        "aggregates": aggregates,
        "windows": windows,
        "joins": joins,
        "process": process,
        "calls": calls,
        "pending": totals,
        "in-flight": totals,
        "files": lines,
    }
    return functions[name](rows)


def all_of(splits: dict[str, list[Row]]) -> list[Row]:
    """Rows in the order in which they are read, as far as they share a key."""
    return [row for split in splits.values() for row in split]


def groups_of(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def by_key(rows: Iterable[Row]) -> dict[str, list[Row]]:
    return groups_of(rows, lambda row: row["k"])


def answer(rows: list[Row], how: str = "rows", keys: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"how": how, "keys": list(keys), "rows": rows}


def total(rows: list[Row]) -> int | None:
    known = [row["v"] for row in rows if row["v"] is not None]
    return sum(known) if known else None


def bounds(start: int, end: int) -> Row:
    return {"window_start": start, "window_end": end}


# --- windows of rows: (key, start, end) -> rows

Windows = dict[tuple[Any, int, int], list[Row]]


def assigned(rows: list[Row], windows: Callable[[int], Iterable[tuple[int, int]]], key: str = "k") -> Windows:
    found: Windows = defaultdict(list)
    for row in rows:
        for start, end in windows(row["at"]):
            found[row.get(key), start, end].append(row)
    return found


def sliding(size: int, every: int) -> Callable[[int], list[tuple[int, int]]]:
    def windows(at: int) -> list[tuple[int, int]]:
        last = at - at % every
        return [(start, start + size) for start in range(last, at - size, -every)]

    return windows


def tumbling(size: int) -> Callable[[int], list[tuple[int, int]]]:
    return sliding(size, size)


def day(at: int) -> list[tuple[int, int]]:
    berlin = ZoneInfo("Europe/Berlin")
    local = datetime.fromtimestamp(at // S, berlin).replace(hour=0, minute=0, second=0)
    start = int(local.timestamp()) * S  # no change of the clocks in January
    return [(start, start + 86_400 * S)]


def overlapping(at: int) -> list[tuple[int, int]]:
    second = datetime.fromtimestamp(at // S, UTC).second
    start = at - at % S - (second % 6) * S
    return [(start, start + 6 * S), (start, start + 18 * S)]


def sessions(rows: list[Row], gap: int) -> Windows:
    found: Windows = {}
    for k, members in by_key(rows).items():
        members.sort(key=lambda row: row["at"])
        group: list[Row] = []
        for row in [*members, None]:
            if group and (row is None or row["at"] >= group[-1]["at"] + gap):
                found[k, group[0]["at"], group[-1]["at"] + gap] = group
                group = []
            if row is not None:
                group.append(row)
    return found


def windowed(found: Windows, values: Callable[[list[Row]], Row]) -> list[Row]:
    return [{**({} if k is None else {"k": k}), **bounds(start, end), **values(rows)} for (k, start, end), rows in found.items()]


# --- aggregates


def every_aggregate(rows: list[Row]) -> Row:
    in_time = sorted(rows, key=lambda row: row["at"])
    known = [row["v"] for row in rows if row["v"] is not None]
    ordered, texts = sorted(known), {row["text"] for row in rows}

    def quantile(share: float) -> float | None:
        return float(ordered[math.ceil(share * len(ordered)) - 1]) if ordered else None

    xs = [row["x"] for row in rows]
    return {
        "n": len(rows),
        "flags": sum(row["flag"] for row in rows),
        "known": len(known),
        "total": total(rows),
        "spent": float(sum(Decimal(row["price"]) for row in rows)),
        "share": sum(xs),
        "mean": statistics.fmean(known) if known else None,
        "low": min(known, default=None),
        "high": max(texts),
        "variance": statistics.variance(known) if len(known) > 1 else None,
        "stddev": statistics.pstdev(xs),
        "first": in_time[0]["v"],
        "last": in_time[-1]["id"],
        "best": sorted(known, reverse=True)[:3],
        "ids": sorted(row["id"] for row in rows),
        "kinds": len({row["small"] for row in rows}),
        "texts": len(texts),
        "near": len(texts),
        "half": quantile(0.5),
        "about": [quantile(0.25), quantile(0.5)] if known else None,
        "range": max(xs) - min(xs),
    }


def aggregates(rows: Rows) -> dict[str, Any]:
    events = all_of(rows["events"])

    panes = answer(windowed(assigned(events, tumbling(10 * S)), every_aggregate), "latest", ("k", "window_start"))
    return {
        "windowed": answer(windowed(assigned(events, tumbling(10 * S)), every_aggregate)),
        "running": answer([{"k": k, **every_aggregate(members)} for k, members in by_key(events).items()], "latest", ("k",)),
        "sliding": answer(windowed(assigned(events, sliding(10 * S, 4 * S)), every_aggregate)),
        "inverse": answer(windowed(assigned(events, sliding(20 * S, 2 * S)), sums)),
        "sessions": answer(windowed(sessions(events, 2 * S), every_aggregate)),
        "panes": panes,
    }


# --- windows


def sums(members: list[Row]) -> Row:
    return {"n": len(members), "total": total(members)}


def cut(rows: Rows) -> dict[str, set[str]]:
    """The ids that were read before the cut."""
    return {
        source: {row["id"] for split in splits.values() for row in split[: len(split) // 2]} for source, splits in rows.items()
    }


def windows(rows: Rows) -> dict[str, Any]:
    events, before = all_of(rows["events"]), cut(rows)["events"]
    tens = windowed(assigned(events, tumbling(10 * S)), sums)
    keys = ("k", "window_start")
    clocked = []
    for k, members in by_key(events).items():
        early = sum(row["id"] in before for row in members)
        clocked += [{"k": k, "cut": "before", "n": early}, {"k": k, "cut": "after", "n": len(members) - early}]
    of_kinds = []
    for k, members in by_key(events).items():
        totals = [total(kind) for kind in groups_of(members, lambda row: row["small"]).values()]
        of_kinds.append({"k": k, "kinds": len(totals), "most": max((t for t in totals if t is not None), default=None)})
    best = [
        {"k": k, **bounds(start, end), **greatest(m, 1)[0]} for (k, start, end), m in assigned(events, tumbling(10 * S)).items()
    ]
    top = [
        {"k": k, "rank": rank, **row}
        for (k, *_), members in assigned(events, tumbling(10 * S)).items()
        for rank, row in enumerate(greatest(members, 2), 1)
    ]
    ever = {k: greatest(members, 2) for k, members in by_key(events).items()}
    return {
        "tumbling": answer(tens),
        "days": answer(windowed(assigned(events, day), sums)),
        "sliding": answer(windowed(assigned(events, sliding(10 * S, 4 * S)), sums)),
        "session": answer(windowed(sessions(events, 2 * S), sums)),
        "custom": answer(windowed(assigned(events, overlapping), sums)),
        "all": answer(windowed(assigned(events, tumbling(10 * S), key=""), sums)),
        "clocked": answer(clocked, "clocked", ("k",)),
        "update": answer(tens, "latest", keys),
        "retract": answer(tens, "net"),
        "delta": answer(tens, "parts", (*keys, "window_end")),
        "late": answer(tens),
        "early-sessions": answer(windowed(sessions(events, 2 * S), sums), "net"),
        "of-kinds": answer(of_kinds, "net"),
        "sevens": answer(
            [
                counted(k, members[start : start + 7])
                for k, members in by_key(events).items()
                for start in range(0, len(members), 7)
            ]
        ),
        "sixes": answer(last_rows(events, before, 6, 2)),
        "gaps": answer(last_rows(events, before, 6, 4)),
        "best": answer(best),
        "best-ever": answer([{"k": k, **rows[0]} for k, rows in ever.items()], "latest", ("k",)),
        "top": answer(top),
        "top-ever": answer(
            [{"k": k, "rank": n, **row} for k, rows in ever.items() for n, row in enumerate(rows, 1)], "latest", ("k", "rank")
        ),
    }


def greatest(members: list[Row], count: int) -> list[Row]:
    return [{"id": row["id"], "x": row["x"]} for row in sorted(members, key=lambda row: -row["x"])[:count]]


def counted(k: str, members: list[Row]) -> Row:
    return {"k": k, "n": len(members), "ids": sorted(row["id"] for row in members)}


def last_rows(rows: list[Row], before: set[str], size: int, every: int) -> list[Row]:
    """Windows of e568083 began at each `every`-th row and were sent when they were full. Since then, at each `every`-th row, the last
    `size` rows are sent; of those from before the cut the ones that the old windows still held: what began no later than
    `size` rows ago."""
    found = []
    for k, members in by_key(rows).items():
        reached = sum(row["id"] in before for row in members)
        starts = range(0, len(members), every)
        found += [counted(k, members[start : start + size]) for start in starts if start + size <= reached]
        held = next(start for start in starts if start + size > reached)
        ends = range(reached // every * every + every, len(members) + 1, every)
        found += [counted(k, members[max(held, end - size) : end]) for end in ends]
    return found


# --- joins


def joins(rows: Rows) -> dict[str, Any]:
    lefts, rights = all_of(rows["left"]), all_of(rows["right"])
    partners = by_key(rights)
    near, both, priced, matched = [], [], [], set()
    for a in lefts:
        close = [b["id"] for b in partners.get(a["k"], []) if -6 * S <= b["at"] - a["at"] <= 4 * S]
        matched.update((a["k"], b) for b in close)
        near += [{"id": a["id"], "id_right": b} for b in close or [None]]
        ((start, _),) = tumbling(10 * S)(a["at"])
        there = [b["id"] for b in partners.get(a["k"], []) if b["small"] == a["small"] and start <= b["at"] < start + 10 * S]
        both += [{"id": a["id"], "id_right": b, "window_start": start} for b in there or [None]]
        earlier = [(b["at"], b["id"]) for b in partners.get(a["k"], []) if 0 <= a["at"] - b["at"] <= 5 * S]
        priced.append({"id": a["id"], "id_right": max(earlier, default=(0, None))[1]})
    near += [{"id": None, "id_right": b["id"]} for b in rights if (b["k"], b["id"]) not in matched]
    seen = [members[0] for members in groups_of(lefts, lambda row: (row["k"], row["text"])).values()]
    lately = [members[0] for members in groups_of(lefts, lambda row: (row["k"], row["small"])).values()]
    sides = []
    for side in (lefts, rights):
        members = groups_of(side, lambda row: (row["k"], row["small"]))
        sides.append({key: (len(rows), total(rows)) for key, rows in members.items() if len(rows) % 5})
    view = [
        {"k": k, "small": small, "n": n, "n_right": n_right, "total": t, "total_right": t_right}
        for k, small in {*sides[0], *sides[1]}
        for n, t in [sides[0].get((k, small), (None, None))]
        for n_right, t_right in [sides[1].get((k, small), (None, None))]
    ]
    view.sort(key=lambda row: (row["k"], row["small"]))
    return {
        "near": answer(near),
        "windows": answer(both),
        "priced": answer(priced),
        "seen": answer([{"k": row["k"], "id": row["id"]} for row in seen]),
        "seen-lately": answer([{"k": row["k"], "id": row["id"]} for row in lately]),
        "labels": answer([{"id": row["id"], "label": ("none", "one", "two", None)[row["small"]]} for row in lefts]),
        "view": answer(view, "net"),
    }


# --- process functions


def process(rows: Rows) -> dict[str, Any]:
    events, rules, before = all_of(rows["left"]), all_of(rows["right"]), cut(rows)["left"]
    told: list[Row] = []
    alarms: list[Row] = []
    today: list[Row] = []
    book: list[Row] = []
    for k, members in by_key(events).items():
        everything(k, sorted(members, key=lambda row: row["at"]), told, alarms)
        for number, row in enumerate(members, 1):
            since = sum(other["id"] in before for other in members)
            today.append({"id": row["id"], "k": k, "today": number if row["id"] in before else number - since, "ever": number})
    for ask in rules:
        bids = [row for row in by_key(events).get(ask["k"], []) if ask["at"] - 3 * S <= row["at"] < ask["at"]]
        book.append({"id": ask["id"], "bids": [row["id"] for row in sorted(bids, key=lambda row: row["at"])]})
    summed = sum(row["v"] or 0 for row in rules)
    batches, counts = [], []
    for k, members in by_key(events).items():
        numbers = [row["v"] or 0 for row in members]
        batches.append({"k": k, "n": len(members), "last": members[-1]["id"], "highest": max(numbers), "total": sum(numbers)})
        counts.append({"k": k, "value": len(members)})
    return {
        "told": answer(told),
        "alarms": answer(alarms),
        "today": answer(today),
        "ticks": answer([{"k": k, "name": "soon"} for k in by_key(events)]),
        "ruled": answer([{"k": k, "seen": len(m), "rules": len(rules), "total": summed} for k, m in by_key(events).items()]),
        "batches": answer(batches, "latest", ("k",)),
        "visits": answer([{"value": "".join(f" {row['id']}" for row in m)} for m in by_key(events).values()]),
        "counts": answer(counts, "latest", ("k",)),
        "slow-counts": answer(counts, "latest", ("k",)),
        "book": answer(book),
    }


def everything(k: str, rows: list[Row], told: list[Row], alarms: list[Row]) -> None:
    """What the process function of all states tells, row by row in order of time."""
    near, spent, visits, highest, summed, texts = 0, Decimal(0), None, None, None, set()
    recent: list[str] = []
    words: dict[str, int] = {}
    quiet, written = None, -math.inf
    for number, row in enumerate([*rows, {"at": END_US}], 1):
        if quiet is not None and quiet < row["at"]:
            alarms.append({"k": k, "at": quiet, "recent": recent})
            recent, words, quiet = [], {}, None
        if "id" not in row:
            alarms.append({"k": k, "at": END_US, "recent": recent})
            return
        near = near + 1 if row["at"] < written + 4 * S else 1
        written = row["at"]
        spent += Decimal(row["price"])
        if row["flag"]:
            visits = [*(visits or []), row["small"]]
        recent = [*recent, row["id"]]
        for word in row["text"].split():
            words[word] = words.get(word, 0) + 1
        if row["v"] is not None:
            highest = row["v"] if highest is None else max(highest, row["v"])
            summed = (summed or 0) + row["v"]
        texts.add(row["text"])
        quiet = None if row["small"] == 2 else row["at"] + 2_500_000
        so_far = [f"{word} {n}" for word, n in words.items()]
        found = {"id": row["id"], "k": k, "seen": number, "near": near, "recent": recent, "words": so_far, "highest": highest}
        told.append({**found, "total": summed, "texts": len(texts), "spent": float(spent), "visits": visits})


# --- calls, pending output, rows in flight


def calls(rows: Rows) -> dict[str, Any]:
    events = all_of(rows["events"])
    answers = [{"id": row["id"], "k": row["k"], "answer": row["small"] * 2} for row in events]
    counts = windowed(assigned(events, tumbling(10 * S)), lambda members: {"n": len(members)})
    found: dict[str, Any] = {}
    for name in ("ordered", "unordered"):
        found |= {name: answer(answers), f"{name}-counts": answer(counts)}
    return found


def totals(rows: Rows) -> dict[str, Any]:
    events = all_of(rows["events"])
    firsts = [members[0] for members in groups_of(events, lambda row: (row["k"], row["text"])).values()]
    per_kind = groups_of(firsts, lambda row: (row["small"], row["at"] - row["at"] % (10 * S)))
    return {
        "rows": answer([{"id": row["id"], "v": row["v"]} for row in events]),
        "totals": answer(
            [{"k": k, "n": len(m), "ids": sorted(row["id"] for row in m)} for k, m in by_key(events).items()], "latest", ("k",)
        ),
        "per-kind": answer([{"small": small, **bounds(s, s + 10 * S), "n": len(m)} for (small, s), m in per_kind.items()]),
    }


def lines(rows: Rows) -> dict[str, Any]:
    events = all_of(rows["events"])
    return {
        "rows": answer([{"id": row["id"], "v": row["v"]} for row in events]),
        "totals": answer([{"k": k, **sums(members)} for k, members in by_key(events).items()], "latest", ("k",)),
    }
