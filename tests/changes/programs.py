"""Two versions of one program: steps as they were, and as they are. Each step of `CHANGES` is one change of its state.

All steps read the same rows. The old version is stopped in the middle of them, the new one goes on; what it must give then is computed
here in plain Python. A key is in one split only, and every key has rows before the cut.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

import penstock as pen
from conformance.source import Gated
from penstock import col, sinks

S = 1_000_000
END = datetime(2100, 1, 1, tzinfo=UTC)
Row = dict[str, Any]
Step = Callable[[pen.Stream, str], pen.Stream]


@dataclass(frozen=True)
class Change:
    """A step before and after. `says`: what `pen.Restore` is told; `gives`: the rows of a key, by what was read before and after."""

    name: str
    old: Step
    new: Step
    gives: Callable[[str, list[Row], list[Row]], list[Row]] | None = None
    says: dict[str, Any] = field(default_factory=dict)
    called: str = ""  # the step now, if it was renamed


def pipeline(changes: Iterable[Change], version: str, rows: dict[str, list[Row]], out: Path, folder: Path) -> pen.Pipeline:
    """The steps of one version ("old" or "new"), each with a folder of its own."""
    p = pen.Pipeline("changes", max_parallelism=16)
    events = p.read(Gated("events", rows, str(folder), 2)).with_watermark("at", delay="3s")
    for change in changes:
        name = change.called if version == "new" and change.called else change.name
        made = getattr(change, version)(events, name)
        made.write(sinks.files(out / change.name, format="json", change="change"), name=change.name)
    return p


# --- process functions: what a state holds is told at the end


@dataclass
class Event:
    id: str
    k: str
    v: int | None
    at: datetime


@dataclass
class Told:
    k: str
    text: str


class Telling(pen.ProcessFunction):
    """Tells what `said` returns when the input ends."""

    def on_row(self, row: Event, ctx: pen.Context) -> None:
        self.take(row)
        ctx.set_timer("end", at=END)

    def on_timer(self, timer: pen.Timer, ctx: pen.Context) -> Told:
        return Told(ctx.key, json.dumps(self.said(), default=vars))

    def take(self, row: Event) -> None:
        raise NotImplementedError

    def said(self) -> Any:
        raise NotImplementedError


def step(function: type[Telling]) -> Step:
    return lambda events, name: events.key_by("k").process(function(), name=name)


def counted(kind: Any) -> type[Telling]:
    """One value per key; its field `n` counts rows, and `more`, if there is one, does so from what it was."""

    class Counted(Telling):
        value = pen.ValueState(kind)

        def take(self, row: Event) -> None:
            value = self.value.get() or kind(n=0)
            value.n += 1
            if getattr(value, "more", None) is not None:
                value.more += 1
            self.value.set(value)

        def said(self) -> Any:
            return self.value.get()

    return Counted


def told(*rows: tuple[str, Any]) -> list[Row]:
    return [{"k": k, "text": json.dumps(value)} for k, value in rows]


@dataclass
class N:
    n: int


@dataclass
class WithDefault:
    more: int = 7
    n: int = 0


@dataclass
class WithNone:
    n: int
    more: int | None = None


@dataclass
class Optional:
    n: int | None


@dataclass
class Narrow:
    x: Annotated[float, pa.float32()]
    n: Annotated[int, pa.int32()]

    def __init__(self, n: int, x: float = 0.5) -> None:
        self.n, self.x = n, x


@dataclass
class Wide:
    n: int
    x: float = 0.5


@dataclass
class WithRest:
    n: int
    rest: str = "old"


@dataclass
class Renamed:
    n: int
    label: str = "new"


@dataclass
class Required:
    n: int
    more: int


@dataclass
class AsText:
    n: str


@dataclass
class Item:
    id: str


@dataclass
class Place:
    country: str


@dataclass
class RequiredItem:
    id: str
    more: int


@dataclass
class MoreItem:
    id: str
    place: Place = field(default_factory=lambda: Place("de"))
    seen: bool = True


class Items(Telling):
    """Lists and maps of a class, and one that is folded."""

    kind: Any = Item
    listed = pen.ListState(Item)
    mapped = pen.MapState(str, Item)
    folded = pen.ReducingState(lambda a, b: max(a, b, key=lambda item: item.id), Item)

    def take(self, row: Event) -> None:
        item = self.kind(row.id)
        self.listed.append(item)
        self.mapped.set(row.id, item)
        self.folded.add(item)

    def said(self) -> Any:
        return [self.listed.get(), dict(self.mapped.items()), self.folded.get()]


class MoreItems(Items):
    kind = MoreItem
    listed = pen.ListState(MoreItem)
    mapped = pen.MapState(str, MoreItem)
    folded = pen.ReducingState(lambda a, b: max(a, b, key=lambda item: item.id), MoreItem)


def more_items(k: str, before: list[Row], after: list[Row]) -> list[Row]:
    def item(row: Row) -> Row:
        return {"id": row["id"], "place": {"country": "de"}, "seen": True}

    rows = [*before, *after]
    greatest = max(rows, key=lambda row: row["id"])
    return told((k, [[item(row) for row in rows], {row["id"]: item(row) for row in rows}, item(greatest)]))


class Many(Telling):
    """A list that is too long for the row of its key."""

    items = pen.ListState(Item)

    def take(self, row: Event) -> None:
        self.items.extend(Item(row.id) for _ in range(40))

    def said(self) -> Any:
        return [len(self.items), self.items.get()]


class ManyMore(Many):
    others = pen.ListState(MoreItem)
    items = None  # it has another name now

    def take(self, row: Event) -> None:
        self.others.extend(MoreItem(row.id, seen=False) for _ in range(40))

    def said(self) -> Any:
        return [len(self.others), self.others.get()]


class ManyWithRest(Many):
    items = pen.ListState(WithRest)

    def take(self, row: Event) -> None:
        self.items.extend(WithRest(n) for n in range(40))


class ManyRenamed(Many):
    items = pen.ListState(Renamed)

    def take(self, row: Event) -> None:
        self.items.extend(Renamed(n) for n in range(40))


def many_renamed(k: str, before: list[Row], after: list[Row]) -> list[Row]:
    items = [{"n": n, "label": label} for label, rows in (("old", before), ("new", after)) for _ in rows for n in range(40)]
    return told((k, [len(items), items]))


class ManyRequired(Many):
    items = pen.ListState(RequiredItem)


class ManyForgetting(Many):
    items = pen.ListState(Item, ttl="40000d")


def many_more(k: str, before: list[Row], after: list[Row]) -> list[Row]:
    rows = [(row, True) for row in before for _ in range(40)] + [(row, False) for row in after for _ in range(40)]
    return told((k, [len(rows), [{"id": row["id"], "place": {"country": "de"}, "seen": seen} for row, seen in rows]]))


class Kept(Telling):
    kept = pen.ValueState(int, default=0)

    def take(self, row: Event) -> None:
        self.kept.set(self.kept.get() + 1)

    def said(self) -> Any:
        return self.kept.get()


class Forgetting(Kept):
    kept = pen.ValueState(int, default=0, ttl="40000d")


class Other(Telling):
    other = pen.ValueState(int, default=0)

    def take(self, row: Event) -> None:
        self.other.set(self.other.get() + 1)

    def said(self) -> Any:
        return self.other.get()


# --- aggregates

TOTAL, MOST = col("v").sum(), col("v").max()


def windows(shape: Any, options: dict[str, Any] | None = None, **aggregates: Any) -> Step:
    return lambda events, name: events.key_by("k").window(shape, **(options or {})).aggregate(**aggregates, name=name)


def running(**aggregates: Any) -> Step:
    return lambda events, name: events.key_by("k").aggregate(**aggregates, name=name)


def total(rows: list[Row]) -> int | None:
    values = [row["v"] for row in rows if row["v"] is not None]
    return sum(values) if values else None


def most(rows: list[Row]) -> int | None:
    return max((row["v"] for row in rows if row["v"] is not None), default=None)


def per_window(starts: Callable[[int], list[int]], size: int, values: Callable[[list[Row], list[Row]], Row]) -> Any:
    def gives(k: str, before: list[Row], after: list[Row]) -> list[Row]:
        found: dict[int, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
        for number, rows in enumerate((before, after)):
            for row in rows:
                for start in starts(row["at"]):
                    found[start][number].append(row)
        return [{"k": k, "window_start": start, "window_end": start + size, **values(*both)} for start, both in found.items()]

    return gives


def tens(at: int) -> list[int]:
    return [at - at % (10 * S)]


def every_four(at: int) -> list[int]:
    return list(range(at - at % (4 * S), at - 10 * S, -4 * S))


def counts_from_here(before: list[Row], after: list[Row]) -> Row:
    return {"n": len(before) + len(after), "total": total(after), "ids": [row["id"] for row in after]}


def sevens(k: str, before: list[Row], after: list[Row]) -> list[Row]:
    rows, ids = [*before, *after], {row["id"] for row in after}
    parts = [(start, rows[start : start + 7]) for start in range(0, len(rows), 7)]
    return [
        {"k": k, "window_start": start, "n": len(part), "total": total([row for row in part if row["id"] in ids])}
        for start, part in parts
    ]


def whole_sessions(k: str, before: list[Row], after: list[Row]) -> list[Row]:
    found, ids = [], {row["id"] for row in after}
    group: list[Row] = []
    for row in [*sorted([*before, *after], key=lambda row: row["at"]), None]:
        if group and (row is None or row["at"] >= group[-1]["at"] + 2 * S):
            since = [each for each in group if each["id"] in ids]
            found.append({"k": k, "window_start": group[0]["at"], "n": len(group), "total": total(since)})
            group = []
        if row is not None:
            group.append(row)
    return found


def restored(changes: Iterable[Change], start: Any) -> pen.Restore:
    """What all of them say together."""
    said: dict[str, Any] = {"rename": {}, "drop": [], "start_empty": []}
    for change in changes:
        said["rename"] |= change.says.get("rename", {})
        for option in ("drop", "start_empty"):
            said[option] += change.says.get(option, [])
    return pen.Restore(start, **said)


CHANGES = [
    Change(
        "default",
        step(counted(N)),
        step(counted(WithDefault)),
        lambda k, before, after: told((k, {"more": 7 + len(after), "n": len(before) + len(after)})),
    ),
    Change(
        "none",
        step(counted(N)),
        step(counted(WithNone)),
        lambda k, before, after: told((k, {"n": len(before) + len(after), "more": None})),
    ),
    Change(
        "nullable",
        step(counted(N)),
        step(counted(Optional)),
        lambda k, before, after: told((k, {"n": len(before) + len(after)})),
    ),
    Change(
        "wider-and-in-another-order",
        step(counted(Narrow)),
        step(counted(Wide)),
        lambda k, before, after: told((k, {"n": len(before) + len(after), "x": 0.5})),
    ),
    Change(
        "removed",
        step(counted(WithRest)),
        step(counted(N)),
        lambda k, before, after: told((k, {"n": len(before) + len(after)})),
        {"drop": ["removed.value.rest"]},
    ),
    Change(
        "field-renamed",
        step(counted(WithRest)),
        step(counted(Renamed)),
        lambda k, before, after: told((k, {"n": len(before) + len(after), "label": "old"})),
        {"rename": {"field-renamed.value.rest": "field-renamed.value.label"}},
    ),
    Change(
        "type-begun-anew",
        step(counted(WithRest)),
        step(counted(WithNone)),
        lambda k, before, after: told((k, {"n": len(before) + len(after), "more": None})),
        {"drop": ["type-begun-anew.value.rest"]},
    ),
    Change("items", step(Items), step(MoreItems), more_items),
    Change("long-lists", step(Many), step(ManyMore), many_more, {"rename": {"long-lists.items": "long-lists.others"}}),
    Change(
        "long-lists-dropped",
        step(Many),
        step(ManyMore),
        lambda k, b, a: many_more(k, [], a),
        {"drop": ["long-lists-dropped.items"]},
    ),
    Change(
        "long-lists-field",
        step(ManyWithRest),
        step(ManyRenamed),
        many_renamed,
        {"rename": {"long-lists-field.items.rest": "long-lists-field.items.label"}},
    ),
    Change(
        "long-lists-step",
        step(Many),
        step(Many),
        lambda k, b, a: told((k, [40 * len(b + a), [{"id": row["id"]} for row in b + a for _ in range(40)]])),
        {"rename": {"long-lists-step": "long-lists-moved"}},
        called="long-lists-moved",
    ),
    Change("forgetting", step(Kept), step(Forgetting), lambda k, b, a: told((k, len(b) + len(a)))),
    Change(
        "state-renamed",
        step(Kept),
        step(Other),
        lambda k, b, a: told((k, len(b) + len(a))),
        {"rename": {"state-renamed.kept": "state-renamed.other"}},
    ),
    Change("state-dropped", step(Kept), step(Other), lambda k, b, a: told((k, len(a))), {"drop": ["state-dropped.kept"]}),
    Change(
        "step-renamed",
        step(Kept),
        step(Kept),
        lambda k, b, a: told((k, len(b) + len(a))),
        {"rename": {"step-renamed": "another-name"}},
        called="another-name",
    ),
    Change("step-dropped", step(Kept), step(Kept), lambda k, b, a: told((k, len(a))), {"drop": ["step-dropped"]}),
    Change(
        "tumbling",
        windows(pen.tumbling("10s"), n=pen.count()),
        windows(pen.tumbling("10s"), ids=col("id").collect(), total=TOTAL, n=pen.count()),
        per_window(tens, 10 * S, counts_from_here),
    ),
    Change(
        "sliding",
        windows(pen.sliding("10s", every="4s"), n=pen.count()),
        windows(pen.sliding("10s", every="4s"), n=pen.count(), total=TOTAL, ids=col("id").collect()),
        per_window(every_four, 10 * S, counts_from_here),
    ),
    Change(
        "panes",
        windows(pen.tumbling("10s"), {"trigger": 2, "emit": "retract"}, n=pen.count(), most=MOST),
        windows(pen.tumbling("10s"), {"trigger": 2, "emit": "retract"}, total=TOTAL, n=pen.count()),
        per_window(tens, 10 * S, lambda b, a: {"n": len(b) + len(a), "total": total(a)}),
        {"drop": ["panes.most"]},
    ),
    Change(
        "session",
        windows(pen.session("2s"), n=pen.count()),
        windows(pen.session("2s"), n=pen.count(), total=TOTAL),
        whole_sessions,
    ),
    Change(
        "sevens", windows(pen.tumbling(rows=7), n=pen.count()), windows(pen.tumbling(rows=7), n=pen.count(), total=TOTAL), sevens
    ),
    Change(
        "aggregate-removed",
        windows(pen.tumbling("10s"), n=pen.count(), total=TOTAL),
        windows(pen.tumbling("10s"), n=pen.count()),
        per_window(tens, 10 * S, lambda b, a: {"n": len(b) + len(a)}),
        {"drop": ["aggregate-removed.total"]},
    ),
    Change(
        "aggregate-renamed",
        running(n=pen.count(), total=TOTAL),
        running(total=TOTAL, number=pen.count()),
        lambda k, b, a: [{"k": k, "number": len(b) + len(a), "total": total([*b, *a])}],
        {"rename": {"aggregate-renamed.n": "aggregate-renamed.number"}},
    ),
    Change(
        "running",
        running(n=pen.count()),
        running(most=MOST, n=pen.count(), kinds=col("small").count_distinct()),
        lambda k, b, a: [{"k": k, "n": len(b) + len(a), "most": most(a), "kinds": len({row["small"] for row in a})}],
        {"start_empty": ["running.most", "running.kinds"]},
    ),
    Change(
        "aggregate-wider",
        running(low=col("small").min(), high=col("small").top_k(2)),
        running(low=col("small").cast("bigint").min(), high=col("small").cast("bigint").top_k(2)),
        lambda k, b, a: [
            {
                "k": k,
                "low": min(row["small"] for row in [*b, *a]),
                "high": sorted((row["small"] for row in [*b, *a]), reverse=True)[:2],
            }
        ],
    ),
]


@dataclass(frozen=True)
class Refused:
    """A change that is refused, with all that is said; `fix` as in a RestoreError's second line."""

    name: str
    old: Step
    new: Step
    message: str
    fix: str
    called: str = ""


HAS = "the newest checkpoint"
REFUSED = [
    Refused(
        "required",
        step(counted(N)),
        step(counted(Required)),
        f"field 'required.value.more' (int64) is new, and nothing says what it is for values from {HAS}",
        "Give it a default in its class, or declare it as T | None, or drop the state. "
        'Write: pen.Restore("latest", drop=["required.value"])',
    ),
    Refused(
        "items-required",
        step(Many),
        step(ManyRequired),
        f"field 'items-required.items.more' (int64) is new, and nothing says what it is for values from {HAS}",
        "Give it a default in its class, or declare it as T | None, or drop the state. "
        'Write: pen.Restore("latest", drop=["items-required.items"])',
    ),
    Refused(
        "whole",
        step(Many),
        step(ManyForgetting),
        f"state 'whole.items' has long lists in {HAS}, each in pieces, and now keeps each value as a whole: "
        "it is a ListState with ttl=, or no ListState",
        'Put it back as it was, or drop it. Write: pen.Restore("latest", drop=["whole.items"])',
    ),
    Refused(
        "gone",
        step(counted(WithRest)),
        step(counted(N)),
        f"{HAS} has field 'gone.value.rest' (string), and its class has no such field now. It has: n",
        'Say that it was removed. Write: pen.Restore("latest", drop=["gone.value.rest"])',
    ),
    Refused(
        "another",
        step(counted(WithRest)),
        step(counted(Renamed)),
        f"{HAS} has field 'another.value.rest' (string), and its class has no such field now. It has: n, label",
        'Say that it was renamed, or that it was removed. Write: pen.Restore("latest", '
        'rename={"another.value.rest": "another.value.label"}), or pen.Restore("latest", drop=["another.value.rest"])',
    ),
    Refused(
        "text",
        step(counted(N)),
        step(counted(AsText)),
        f"field 'text.value.n' is int64 not null in {HAS} and string not null now, which does not hold all of its values",
        'Put it back, or let it begin with its default. Write: pen.Restore("latest", drop=["text.value.n"])',
    ),
    Refused(
        "narrow",
        step(counted(Wide)),
        step(counted(Narrow)),
        f"field 'narrow.value.x' is double not null in {HAS} and float not null now, which does not hold all of its values",
        'Put it back, or let it begin with its default. Write: pen.Restore("latest", drop=["narrow.value.x"])',
    ),
    Refused(
        "never-null",
        step(counted(Optional)),
        step(counted(N)),
        f"field 'never-null.value.n' is int64 in {HAS} and int64 not null now, which does not hold all of its values",
        'Put it back, or let it begin with its default. Write: pen.Restore("latest", drop=["never-null.value.n"])',
    ),
    Refused(
        "totals",
        running(n=pen.count()),
        running(n=pen.count(), total=TOTAL),
        f"{HAS} has no aggregate 'totals.total', and 'totals' never closes: it would be wrong for good, since it counts only from here on",
        'Say that it may. Write: pen.Restore("latest", start_empty=["totals.total"])',
    ),
    Refused(
        "less",
        windows(pen.tumbling("10s"), n=pen.count(), total=TOTAL),
        windows(pen.tumbling("10s"), n=pen.count()),
        f"{HAS} has aggregate 'less.total', and step 'less' has no such aggregate now. It has: n",
        'Say that it was removed. Write: pen.Restore("latest", drop=["less.total"])',
    ),
    Refused(
        "changed",
        running(x=TOTAL),
        running(x=MOST),
        f"aggregate 'changed.x' is another one now: what {HAS} keeps of it cannot be gone on from",
        'Put it back, or begin it anew. Write: pen.Restore("latest", drop=["changed.x"], start_empty=["changed.x"])',
    ),
    Refused(
        "sized",
        windows(pen.tumbling("10s"), n=pen.count()),
        windows(pen.tumbling("20s"), n=pen.count()),
        f"step 'sized' had size=10000000 in {HAS} and has size=20000000 now",
        'Put it back, or start the step empty. Write: pen.Restore("latest", drop=["sized"])',
    ),
    Refused(
        "kind",
        running(n=pen.count()),
        step(Kept),
        f"step 'kind' was a aggregate in {HAS} and is a process now: one cannot read the other's state",
        'Put it back, or start the step empty. Write: pen.Restore("latest", drop=["kind"])',
    ),
    Refused(
        "value",
        step(counted(N)),
        step(Kept),
        f"{HAS} has state 'value.value', and step 'value' keeps no such state now. It keeps: kept",
        'Say that it was renamed, or that it was removed. Write: pen.Restore("latest", rename={"value.value": "value.kept"}), '
        'or pen.Restore("latest", drop=["value.value"])',
    ),
]
