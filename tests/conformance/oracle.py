"""The expected answer of each conformance case: plain Python over the rows of `data`, and the committed files read by glob.

Imports nothing of Penstock. `check(name, inputs, out)` raises AssertionError where what was committed is not the answer.
"""

from __future__ import annotations

import glob
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from conformance import data
from unplaced import unplaced

Inputs = dict[str, dict[str, list[data.Row]]]
Rows = list[dict[str, Any]]


def committed(folder: str) -> Rows:
    """The rows of all committed epochs of a file sink."""
    rows: Rows = []
    for path in sorted(glob.glob(f"{folder}/epoch=*/part-*.json")):
        with open(path) as file:
            rows += [json.loads(line) for line in file if line.strip()]
    return rows


def latest(folder: str, keys: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The last row per key of an update stream."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted(glob.glob(f"{folder}/update-*.json")):
        with open(path) as file:
            for line in file:
                if line.strip():
                    row = json.loads(line)
                    rows[tuple(row[key] for key in keys)] = row
    return rows


def micros(text: str) -> int:
    """A timestamp as a file has it, in µs since 1970."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def window(at: int, seconds: int) -> int:
    """The start of the window a time lies in."""
    return at - at % (seconds * 1_000_000)


def grouped(rows: Iterable[data.Row], key: Callable[[data.Row], Any]) -> dict[Any, list[data.Row]]:
    groups: dict[Any, list[data.Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def total(rows: Rows, column: str = "v") -> int | None:
    values = [row[column] for row in rows if row[column] is not None]
    return sum(values) if values else None


def same(found: dict[Any, Any], expected: dict[Any, Any], what: str) -> None:
    """Equal, or an error that shows the first differences."""
    if found != expected:
        missing = [key for key in expected if key not in found][:3]
        extra = [key for key in found if key not in expected][:3]
        differ = [(key, found[key], expected[key]) for key in expected if key in found and found[key] != expected[key]][:3]
        raise AssertionError(
            f"{what}: {len(found)} rows, expected {len(expected)}; missing {missing}; extra {extra}; differ {differ}"
        )


def once(rows: Rows, keys: tuple[str, ...], values: tuple[str, ...], what: str) -> dict[Any, Any]:
    """Rows by key; a key twice is an error, since results of windows are final."""
    found: dict[Any, Any] = {}
    for row in rows:
        key = tuple(micros(row[k]) if k.startswith("window_") else row[k] for k in keys)
        assert key not in found, f"{what}: {key} was committed twice"
        found[key] = tuple(row[v] for v in values)
    return found


def check_windows(inputs: Inputs, out: str) -> None:
    rows = committed(f"{out}/main")
    assert len(rows) >= 1000, f"only {len(rows)} result rows"
    groups = grouped(data.everything(inputs["events"]), lambda r: (r["k"], window(r["at"], 5)))
    assert min(Counter(k for k, _ in groups).values()) >= 3, "each key should have at least three windows"
    expected = {}
    for key, members in groups.items():
        values = [r["v"] for r in members if r["v"] is not None]
        expected[key] = (len(members), total(members), min(values, default=None), max(values, default=None))
    same(once(rows, ("k", "window_start"), ("n", "total", "low", "high"), "windows"), expected, "windows")
    for row in rows:
        members = groups[row["k"], micros(row["window_start"])]
        mean = sum(r["x"] for r in members) / len(members)
        assert math.isclose(row["mean"], mean, rel_tol=1e-9, abs_tol=1e-9), (row, mean)
        assert micros(row["window_end"]) == micros(row["window_start"]) + 5_000_000


def check_late(inputs: Inputs, out: str) -> None:
    """Conservation: every row is in the result or in `late`, once; and rows within the bound are never late."""
    rows = data.everything(inputs["events"])
    late = committed(f"{out}/late")
    late_ids = [row["id"] for row in late]
    assert len(set(late_ids)) == len(late_ids), "a late row came twice"
    counts = once(committed(f"{out}/main"), ("k", "window_start"), ("n",), "main")
    expected = Counter((r["k"], window(r["at"], 5)) for r in rows if r["id"] not in set(late_ids))
    same({key: n for key, (n,) in counts.items()}, dict(expected), "late")
    for row in rows:
        number = int(row["id"].split("-")[1])
        if not (number and number % 25 == 0):
            assert row["id"] not in set(late_ids), f"{row['id']} is within its bound and was late"


def check_two_inputs(inputs: Inputs, out: str) -> None:
    rows = [("left", r) for r in data.everything(inputs["left"])]
    rows += [("right", r) for r in data.everything(inputs["right"]) if r["flag"]]
    groups: dict[Any, Rows] = defaultdict(list)
    for side, row in rows:
        groups[row["k"], side, window(row["at"], 10)].append(row)
    expected = {key: (len(members), total(members)) for key, members in groups.items()}
    same(once(committed(f"{out}/main"), ("k", "side", "window_start"), ("n", "total"), "two inputs"), expected, "two inputs")


def check_two_sinks(inputs: Inputs, out: str) -> None:
    rows = data.everything(inputs["events"])
    raw = once(committed(f"{out}/raw"), ("id",), ("v",), "raw")
    same(raw, {(r["id"],): (r["v"],) for r in rows if r["v"] is not None and r["v"] > 400}, "raw")
    for folder, column, size in (("main", "k", 5), ("small", "small", 20)):
        expected = Counter((r[column], window(r["at"], size)) for r in rows)
        found = once(committed(f"{out}/{folder}"), (column, "window_start"), ("n",), folder)
        same({key: n for key, (n,) in found.items()}, dict(expected), folder)


def check_running(inputs: Inputs, out: str) -> None:
    groups = grouped(data.everything(inputs["events"]), lambda r: (r["k"],))
    expected = {
        key: (len(members), total(members), min(r["text"] for r in members), sum(r["flag"] for r in members))
        for key, members in groups.items()
    }
    found = {key: (r["n"], r["total"], r["low"], r["flags"]) for key, r in latest(f"{out}/main", ("k",)).items()}
    same(found, expected, "running")


def check_reduced(inputs: Inputs, out: str) -> None:
    rows = data.everything(inputs["events"])
    best = {
        key: max((r["x"], r["id"]) for r in members)
        for key, members in grouped(rows, lambda r: (r["k"], window(r["at"], 5))).items()
    }
    same(once(committed(f"{out}/main"), ("k", "window_start"), ("x", "id"), "reduced"), best, "reduced")
    ever = {key: max((r["x"], r["id"]) for r in members) for key, members in grouped(rows, lambda r: (r["k"],)).items()}
    same({key: (r["x"], r["id"]) for key, r in latest(f"{out}/ever", ("k",)).items()}, ever, "best ever")


def check_word_count(inputs: Inputs, out: str) -> None:
    expected = Counter(
        (r["k"], word, window(r["at"], 20)) for r in data.everything(inputs["events"]) for word in r["text"].split()
    )
    found = once(committed(f"{out}/main"), ("k", "word", "window_start"), ("n",), "words")
    same({key: n for key, (n,) in found.items()}, dict(expected), "words")


def check_split(inputs: Inputs, out: str) -> None:
    def tag(row: data.Row) -> str:
        value = row["v"]
        return "rest" if value is None or -250 <= value <= 250 else "high" if value > 250 else "low"

    for name, members in grouped(data.everything(inputs["events"]), tag).items():
        groups = grouped(members, lambda r: (r["k"], window(r["at"], 5)))
        expected = {key: (len(rows), total(rows)) for key, rows in groups.items()}
        same(once(committed(f"{out}/{name}"), ("k", "window_start"), ("n", "total"), name), expected, name)


def check_chained(inputs: Inputs, out: str) -> None:
    rows = data.everything(inputs["events"])
    fine = Counter((r["k"], r["small"], window(r["at"], 5)) for r in rows)
    found = once(committed(f"{out}/main"), ("k", "small", "window_start"), ("n",), "fine")
    same({key: n for key, (n,) in found.items()}, dict(fine), "fine")
    coarse: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for (k, _, start), n in fine.items():
        entry = coarse[k, window(start, 30)]
        entry[0] += n
        entry[1] += 1
    expected = {key: tuple(entry) for key, entry in coarse.items()}
    same(once(committed(f"{out}/coarse"), ("k", "window_start"), ("total", "parts"), "coarse"), expected, "coarse")


def check_dead_letters(inputs: Inputs, out: str) -> None:
    rows = data.everything(inputs["events"])
    divided = [r for r in rows if r["small"] == 0 and r["v"] is not None]
    rest = [r for r in rows if not (r["small"] == 0 and r["v"] is not None)]
    raised = [r for r in rest if r["small"] == 3 and r["flag"]]
    good = [r for r in rest if not (r["small"] == 3 and r["flag"])]
    expected = Counter((r["small"], window(r["at"], 5)) for r in good)
    found = once(committed(f"{out}/main"), ("value", "window_start"), ("n",), "halves")
    same({key: n for key, (n,) in found.items()}, dict(expected), "halves")
    letters = committed(f"{out}/dead")
    assert len(letters) == len(divided) + len(raised), f"{len(letters)} dead letters, expected {len(divided)} + {len(raised)}"
    told = Counter(letter["record"].split("'id': '")[1].split("'")[0] for letter in letters)
    same(dict(told), dict(Counter(r["id"] for r in divided + raised)), "dead letters")


def check_all_rows(inputs: Inputs, out: str) -> None:
    groups = grouped(data.everything(inputs["events"]), lambda r: (window(r["at"], 1),))
    expected = {key: (len(rows), total(rows)) for key, rows in groups.items()}
    same(once(committed(f"{out}/main"), ("window_start",), ("n", "total"), "all rows"), expected, "all rows")


def check_typed_keys(inputs: Inputs, out: str) -> None:
    def key(row: data.Row) -> tuple[Any, ...]:
        big = Decimal(row["price"]) > 500
        return row["small"], row["flag"], row["maybe"], big, window(row["at"], 60), window(row["at"], 10)

    expected = {}
    for group, rows in grouped(data.everything(inputs["events"]), key).items():
        cents = [Decimal(r["price"]) for r in rows]
        expected[group] = (len(rows), sum(cents), max(cents))
    found = {}
    for row in committed(f"{out}/main"):
        group = (row["small"], row["flag"], row["maybe"], row["big"], micros(row["minute"]), micros(row["window_start"]))
        assert group not in found, f"{group} was committed twice"
        found[group] = (row["n"], Decimal(str(row["spent"])), Decimal(str(row["most"])))
    same(found, expected, "typed keys")


def changed(folder: str, keys: tuple[str, ...]) -> Rows:
    """What remains of an update stream in files: the last row per key that was not deleted."""
    kept: dict[Any, dict[str, Any]] = {}
    for row in by_epoch(folder):
        key = tuple(row[k] for k in keys)
        if row["change"] < 0:
            kept.pop(key, None)
        else:
            kept[key] = row
    return list(kept.values())


def remaining(folder: str) -> Rows:
    """What remains of a retract stream in files: rows that were not withdrawn."""
    total: Counter[str] = Counter()
    for row in committed(folder):
        total[json.dumps({k: v for k, v in row.items() if k != "change"}, sort_keys=True)] += row["change"]
    assert set(total.values()) <= {0, 1}, "a row was withdrawn that was not there, or sent twice"
    return [json.loads(text) for text, n in total.items() if n]


def by_epoch(folder: str) -> Rows:
    """Rows in the order of their epochs."""
    rows: Rows = []
    for path in sorted(glob.glob(f"{folder}/epoch=*"), key=lambda p: int(p.rpartition("=")[2].partition("-")[0])):
        for part in sorted(glob.glob(f"{path}/part-*.json")):
            with open(part) as file:
                rows += [json.loads(line) for line in file if line.strip()]
    return rows


def check_sliding(inputs: Inputs, out: str) -> None:
    groups: dict[Any, Rows] = defaultdict(list)
    for row in data.everything(inputs["events"]):
        start = window(row["at"], 4)
        while start > row["at"] - 10_000_000:
            groups[row["k"], start].append(row)
            start -= 4_000_000
    expected, found = {}, {}
    for key, members in groups.items():
        values = [r["v"] for r in members if r["v"] is not None]
        first, last = min(members, key=lambda r: r["at"]), max(members, key=lambda r: r["at"])
        kinds, best = len({r["small"] for r in members}), sorted(values, reverse=True)[:3]
        expected[key] = (len(members), total(members), kinds, best, first["at"], last["at"])
    at = {r["id"]: r["at"] for r in data.everything(inputs["events"])}
    for row in committed(f"{out}/main"):
        key = row["k"], micros(row["window_start"])
        assert key not in found, f"{key} was committed twice"
        found[key] = (row["n"], row["total"], row["kinds"], row["best"], at[row["first"]], at[row["last"]])
        values = [r["v"] for r in groups[key] if r["v"] is not None]
        if len(values) > 1:
            assert math.isclose(row["spread"], statistics.variance(values), rel_tol=1e-9), row
    same(found, expected, "sliding")


def check_sessions(inputs: Inputs, out: str) -> None:
    expected = {}
    for key, members in grouped(data.everything(inputs["events"]), lambda r: r["k"]).items():
        group: Rows = []
        for row in [*sorted(members, key=lambda r: r["at"]), None]:
            if group and (row is None or row["at"] >= group[-1]["at"] + 700_000):
                bounds = (group[0]["at"], group[-1]["at"] + 700_000)
                expected[key, *bounds] = (len(group), total(group))
                group = []
            if row is not None:
                group.append(row)
    assert len(expected) >= 1000
    keys, values = ("k", "window_start", "window_end"), ("n", "total")
    same(once(committed(f"{out}/main"), keys, values, "sessions"), expected, "sessions")
    same(once(changed(f"{out}/update", ("k", "window_start")), keys, values, "updated"), expected, "updated")
    same(once(remaining(f"{out}/retract"), keys, values, "withdrawn"), expected, "withdrawn")


def check_panes(inputs: Inputs, out: str) -> None:
    groups = grouped(data.everything(inputs["events"]), lambda r: (r["k"], window(r["at"], 5)))
    expected = {key: (len(rows), total(rows)) for key, rows in groups.items()}
    keys, values = ("k", "window_start"), ("n", "total")
    same(once(changed(f"{out}/update", keys), keys, values, "updated"), expected, "updated")
    same(once(remaining(f"{out}/retract"), keys, values, "withdrawn"), expected, "withdrawn")
    parts: dict[Any, list[Any]] = defaultdict(lambda: [0, None])
    for row in committed(f"{out}/delta"):
        assert row["n"] <= 3
        part = parts[row["k"], micros(row["window_start"])]
        part[0] += row["n"]
        part[1] = part[1] if row["total"] is None else row["total"] + (part[1] or 0)
    same({key: tuple(part) for key, part in parts.items()}, expected, "parts")


def check_withdrawn(inputs: Inputs, out: str) -> None:
    per_text: dict[str, list[Any]] = defaultdict(list)
    for members in grouped(data.everything(inputs["events"]), lambda r: (r["k"], r["small"])).values():
        per_text[max(members, key=lambda r: r["at"])["text"]].append(total(members))
    expected = {}
    for text, revenues in per_text.items():
        known = [r for r in revenues if r is not None]
        expected[text,] = (len(revenues), sum(known) if known else None, max(known, default=None))
    same(once(remaining(f"{out}/main"), ("text",), ("keys", "revenue", "most"), "per text"), expected, "per text")
    counts = Counter((len(revenues),) for revenues in per_text.values() if len(revenues) > 1)
    found = once(changed(f"{out}/counts", ("keys",)), ("keys",), ("texts",), "per count")
    same({key: n for key, (n,) in found.items()}, dict(counts), "per count")


def check_counted(inputs: Inputs, out: str) -> None:
    """Which rows share a window depends on the order in which splits are read; that each is in the right number of them does not."""
    sizes = Counter(r["k"] for r in data.everything(inputs["events"]))
    ids = {r["id"]: r["k"] for r in data.everything(inputs["events"])}
    beside = {(k, start, min(start + 7, n)) for k, n in sizes.items() for start in range(0, n, 7)}
    last_six = {(k, max(end - 6, 0), end) for k, n in sizes.items() for end in range(4, n + 1, 4)}
    for folder, expected in (("main", beside), ("sliding", last_six)):
        seen: dict[Any, Any] = {}
        for row in committed(f"{out}/{folder}"):
            key = row["k"], row["window_start"], row["window_end"]
            assert key not in seen, f"{key} was committed twice"
            assert row["n"] == len(row["ids"]) == row["window_end"] - row["window_start"]
            assert all(ids[i] == row["k"] for i in row["ids"])
            seen[key] = row["ids"]
        same(set(seen), expected, folder)
        numbered = {k: {} for k in sizes}
        for (k, start, _), members in seen.items():
            for place, i in enumerate(members):
                assert numbered[k].setdefault(start + place, i) == i, "a row has one number"
        whole = {k: n if folder == "main" else n // 4 * 4 for k, n in sizes.items()}
        assert all(len(set(n.values())) == whole[k] for k, n in numbered.items()), "each row is in some window"


def check_joins(inputs: Inputs, out: str) -> None:
    lefts, rights = data.everything(inputs["left"]), data.everything(inputs["right"])
    by_key = grouped(rights, lambda r: r["k"])
    near: Counter[Any] = Counter()
    windows: Counter[Any] = Counter()
    priced: Counter[Any] = Counter()
    for a in lefts:
        partners = by_key.get(a["k"], [])
        close = [b["id"] for b in partners if -1_000_000 <= b["at"] - a["at"] <= 2_000_000]
        near.update((a["id"], b) for b in close or [None])
        start = window(a["at"], 5)
        there = [b["id"] for b in partners if b["small"] == a["small"] and window(b["at"], 5) == start]
        windows.update((a["id"], b, start) for b in there or [None])
        before = [(b["at"], b["id"]) for b in partners if 0 <= a["at"] - b["at"] <= 3_000_000]
        priced[a["id"], max(before, default=(0, None))[1]] += 1
    matched = {b for _, b in near}
    near.update((None, b["id"]) for b in rights if b["id"] not in matched)
    same(dict(Counter((r["id"], r["id_right"]) for r in committed(f"{out}/near"))), dict(near), "near")
    found = Counter((r["id"], r["id_right"], micros(r["window_start"])) for r in committed(f"{out}/windows"))
    same(dict(found), dict(windows), "windows")
    same(dict(Counter((r["id"], r["id_right"]) for r in committed(f"{out}/priced"))), dict(priced), "priced")
    seen = Counter((r["k"], r["text"]) for r in committed(f"{out}/seen"))
    same(dict(seen), {(r["k"], r["text"]): 1 for r in lefts}, "seen")
    labels = {r["id"]: ("none", "one", "two", None)[r["small"]] for r in lefts}
    same(once(committed(f"{out}/labels"), ("id",), ("label",), "labels"), {(k,): (v,) for k, v in labels.items()}, "labels")
    best = {}
    for members in grouped(lefts, lambda r: window(r["at"], 5)).values():
        ranked = sorted(members, key=lambda r: (-r["x"], r["at"]))[:3]
        best |= {(r["id"],): (rank + 1,) for rank, r in enumerate(ranked)}
    same(once(committed(f"{out}/best"), ("id",), ("rank",), "best"), best, "best")


def check_view(inputs: Inputs, out: str) -> None:
    sides = []
    for name in ("left", "right"):
        groups = grouped((r for r in data.everything(inputs[name]) if r["small"] > 0), lambda r: r["k"])
        sides.append({k: (len(rows), total(rows)) for k, rows in groups.items() if len(rows) % 5})
    absent = (None, None)
    expected = {(k, *sides[0].get(k, absent), *sides[1].get(k, absent)): 1 for k in {*sides[0], *sides[1]}}
    found: Counter[Any] = Counter()
    for row in committed(f"{out}/main"):
        found[row["k"], row["n"], row["total"], row["n_right"], row["total_right"]] += row["change"]
    same({key: n for key, n in found.items() if n}, expected, "view")


def check_async(inputs: Inputs, out: str) -> None:
    rows = data.everything(inputs["events"])
    failed = {r["id"] for r in rows if r["small"] == 3 and r["flag"]}
    good = [r for r in rows if r["id"] not in failed]
    assert len(failed) >= 50
    windows = grouped(good, lambda r: (r["k"], window(r["at"], 5)))
    for name in ("main", "any"):
        answers = once(committed(f"{out}/{name}"), ("id",), ("k", "answer"), name)
        same(answers, {(r["id"],): (r["k"], r["small"] * 2) for r in good}, name)
        counts = once(committed(f"{out}/{name}-counts"), ("k", "window_start"), ("n", "total"), f"{name} counts")
        expected = {key: (len(members), sum(r["small"] * 2 for r in members)) for key, members in windows.items()}
        same(counts, expected, f"{name} counts")
    letters = Counter((r["step"], unplaced(r["error"]), r["source"]) for r in committed(f"{out}/dead"))
    expected_letters = {
        (f"{name}-answers", f"ConnectionError: no answer for {i}", "events"): 1 for name in ("main", "any") for i in failed
    }
    same(dict(letters), expected_letters, "dead letters")


def check_process(inputs: Inputs, out: str) -> None:
    bursts: dict[Any, Any] = {}
    silences, ever = {}, {}
    for k, rows in grouped(data.everything(inputs["events"]), lambda r: r["k"]).items():
        rows.sort(key=lambda r: r["at"])
        assert len({r["at"] for r in rows}) == len(rows), "no two rows of a key have the same time, so their order is known"
        ever[k,] = (4 * len(rows), [f"{row['id']} {number}" for row in rows for number in range(4)])
        burst: Rows = []
        for row, after in zip(rows, [*(r["at"] for r in rows[1:]), math.inf]):
            burst.append(row)
            if (row["small"] == 3 and row["flag"]) or after > row["at"] + 900_000:
                bursts[k, burst[0]["id"]] = burst_of(burst)
                burst = []
            if after > row["at"] + 2_000_000:
                silences[k, row["at"]] = 1
    found = committed(f"{out}/main")
    assert len(found) >= 300, f"only {len(found)} bursts"
    assert len({len(burst[1]) for burst in bursts.values()}) >= 4, "bursts have different lengths"
    for row in found:
        row["ids"] = tuple(row["ids"])
    same(once(found, ("k", "first"), ("last", "ids", "words", "most", "total"), "bursts"), bursts, "bursts")
    told = Counter((r["k"], micros(r["since"])) for r in committed(f"{out}/silences"))
    assert len(silences) >= 100, f"only {len(silences)} silences"
    same(dict(told), silences, "silences")
    assert sum(n > 100 for n, _ in ever.values()) >= 30, "most lists are long"
    same(once(committed(f"{out}/ever"), ("k",), ("n", "said"), "ever"), ever, "ever")


def burst_of(rows: Rows) -> tuple[Any, ...]:
    words = Counter(word for row in rows for word in row["text"].split())
    most = max(words, key=lambda word: (words[word], word), default=None)
    return rows[-1]["id"], tuple(row["id"] for row in rows), sum(words.values()), most, total(rows)


def check_connected(inputs: Inputs, out: str) -> None:
    lefts, rights = data.everything(inputs["left"]), data.everything(inputs["right"])
    sides = [("bid" + r["id"], r) for r in lefts] + [("ask" + r["id"], r) for r in rights]
    matches: dict[Any, Any] = {}
    left: dict[Any, Any] = {}
    for rows in grouped(({**r, "what": what[:3]} for what, r in sides), lambda r: r["k"]).values():
        rows.sort(key=lambda r: r["at"])
        assert len({r["at"] for r in rows}) == len(rows), "no two rows of a key have the same time, so their order is known"
        book: dict[str, tuple[float, int]] = {}
        for row in [*rows, {"what": "end", "at": math.inf}]:
            for id, (_, since) in sorted(book.items(), key=lambda item: item[1][1]):
                if since + 3_000_000 < row["at"]:
                    del book[id]
                    left[id,] = (None, len(book))
            fitting = [(x, id) for id, (x, _) in book.items() if row["what"] == "ask" and row["flag"] and x >= row["x"]]
            if row["what"] == "bid":
                book[row["id"]] = row["x"], row["at"]
            elif fitting:
                del book[max(fitting)[1]]
                matches[max(fitting)[1],] = (row["id"], len(book))
    assert len(matches) >= 100, f"only {len(matches)} matches"
    same(once(committed(f"{out}/main"), ("bid",), ("ask", "open"), "matches"), matches, "matches")
    assert len(left) >= 100, f"only {len(left)} bids were left"
    same(once(committed(f"{out}/left"), ("bid",), ("ask", "open"), "left"), left, "left")
    rules = len({r["k"] for r in rights}), total(rights)
    ruled = {(k,): (len(rows), *rules) for k, rows in grouped(lefts, lambda r: r["k"]).items()}
    same(once(committed(f"{out}/ruled"), ("k",), ("seen", "rules", "total"), "ruled"), ruled, "ruled")


def check(name: str, inputs: Inputs, out: str) -> None:
    """Whether what was committed under `out` is the answer of case `name`."""
    if name == "states":
        from conformance import contract_oracle  # which needs this module first

        contract_oracle.check(inputs, out)
        return
    globals()[f"check_{name.replace('-', '_')}"](inputs, out)
