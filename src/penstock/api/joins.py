"""How joins are written: what `on=`, `within=` and `window=` may be. The methods of `Stream` call these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from penstock.api.arguments import as_expr, at_line, need_name, quoted
from penstock.api.where import user_line
from penstock.connectors.connector import Source
from penstock.connectors.memory import memory
from penstock.errors import Fix, PlanError, brief
from penstock.eventtime import micros
from penstock.expr import Expr, parse_order
from penstock.names import check_name
from penstock.plan import joins
from penstock.plan.dedupe import DropDuplicates
from penstock.plan.lookup import Lookup, Table
from penstock.plan.top import DIRECTIONS, Top, WindowTop
from penstock.schema import visible
from penstock.windows import Shape, shape_of

if TYPE_CHECKING:
    from penstock.api.stream import Stream

On = str | Sequence[str] | Mapping[str, str]
By = Expr | str | Sequence[Expr | str]
Ascending = bool | Sequence[bool]
Said = Sequence[bool | None]


def join(left: Stream, right: Stream, *, on: On, window: Any, within: Any, how: str, suffix: str, name: str | None) -> Stream:
    """See `Stream.join`."""
    check_sides(left, right, "join")
    pairs = at_line(lambda: pairs_of(on))
    name = need_name(name, "join", f"…, on={on!r}", tuple(key for key, _ in pairs))
    common: dict[str, Any] = {"where": user_line(), "left": left._node, "right": right._node, "on": pairs, "how": how}
    common |= {"suffix": suffix, "name": name, "on_error": left._on_error}
    if window is not None and within is not None:
        raise PlanError(
            "window= and within= are two ways to bound a join",
            fix=Fix("join.two-bounds", "Leave one of them out"),
            where=user_line(),
        )
    if window is not None:
        return left._then(joins.WindowJoin(**common, window=at_line(lambda: shape_of(window))))
    if within is None:
        raise PlanError(
            "this join would keep every row of both sides for ever",
            fix=Fix(
                "join.bounds",
                'Bound it, or say that this is what you want. Write: within=("0s", "30m"), or window=pen.tumbling("1m"),'
                ' or within="forever"',
            ),
            where=user_line(),
        )
    if within == "forever":
        return left._then(joins.ForeverJoin(**common))
    lower, upper = at_line(lambda: bounds_of(within))
    return left._then(joins.IntervalJoin(**common, lower=lower, upper=upper))


def join_asof(left: Stream, right: Stream, *, on: On, tolerance: Any, how: str, suffix: str, name: str | None) -> Stream:
    """See `Stream.join_asof`."""
    check_sides(left, right, "join_asof")
    pairs = at_line(lambda: pairs_of(on))
    node = joins.AsofJoin(
        where=user_line(),
        left=left._node,
        right=right._node,
        on=pairs,
        how=how,
        suffix=suffix,
        name=need_name(name, "join_asof", f"…, on={on!r}", tuple(key for key, _ in pairs)),
        on_error=left._on_error,
        tolerance=None if tolerance is None else at_line(lambda: micros(tolerance, "tolerance")),
    )
    return left._then(node)


def top(
    stream: Stream,
    keys: tuple[str, ...],
    count: int,
    *,
    by: By,
    ascending: Ascending | None,
    window: Shape | None,
    name: str | None,
) -> Stream:
    """See `KeyedStream.top` and `WindowedStream.top`."""
    order, said, up = at_line(lambda: order_of(by, ascending, visible(stream.schema).names))
    common: dict[str, Any] = {"where": user_line(), "input": stream._node, "by": keys, "count": count, "order": order}
    common |= {"ascending": up, "said": said, "on_error": stream._on_error}
    rest = "" if ascending is None else f", ascending={ascending!r}"
    common["name"] = need_name(name, "top", f"{count}, by={by_text(order, said)}{rest}", keys)
    return stream._then(Top(**common) if window is None else WindowTop(**common, window=window))


def order_of(by: By, ascending: Ascending | None, columns: Sequence[str]) -> tuple[tuple[Expr, ...], Said, tuple[bool, ...]]:
    """What rows with these columns are ordered by: one expression or several, what `by` says of their direction, and what it is."""
    found = [_ordered(each) for each in (by if isinstance(by, list | tuple) else [by])]
    if not found:
        raise PlanError(
            "by=[] names nothing to order by, and top needs at least one", fix=Fix("top.by", f'Write: by=["{columns[-1]}"]')
        )
    order, said, nulls_first = zip(*found, strict=True)
    given = said if ascending is None else directions(ascending, len(found))
    up = tuple(bool(one if each is None else each) for each, one in zip(said, given, strict=True))
    if nulls_first != (None,) * len(found):
        raise _nulls(order, up, nulls_first, ascending)
    if ascending is not None and said != (None,) * len(found):
        raise PlanError(
            f"by={by_text(order, said)} says a direction, and so does ascending={ascending!r}",
            fix=Fix("top.directions", f"Leave ascending= out. Write: by={by_text(order, up)}"),
        )
    return order, said, up


def _nulls(order: Sequence[Expr], up: Sequence[bool], nulls_first: Said, ascending: Ascending | None) -> PlanError:
    parts: list[tuple[Expr, bool]] = []
    for each, one, first in zip(order, up, nulls_first, strict=True):
        parts += [(each.is_null(), False), (each, one)] if first else [(each, one)]
    word, how = ("first", "order by whether it is null before") if True in nulls_first else ("last", "leave that out")
    how = how.capitalize() if ascending is None else f"Leave ascending= out, and {how}"
    return PlanError(
        f"by= says nulls {word}, and in top null comes last, whatever the direction",
        fix=Fix("top.nulls", f"{how}. Write: by={by_text(*zip(*parts, strict=True))}"),
    )


def _ordered(value: object) -> tuple[Expr, bool | None, bool | None]:
    return parse_order(value) if isinstance(value, str) else (as_expr(value), None, None)


def by_text(order: Sequence[Expr], said: Said) -> str:
    """What by= is, as it is written: `["price", "at asc"]`."""
    texts = [quoted(each.text() + DIRECTIONS[up]) for each, up in zip(order, said, strict=True)]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def directions(ascending: Ascending, count: int) -> tuple[bool, ...]:
    """What `ascending=` says of each of so many expressions."""
    if isinstance(ascending, bool):
        return (ascending,) * count
    if (
        not isinstance(ascending, list | tuple)
        or not all(isinstance(each, bool) for each in ascending)
        or len(ascending) != count
    ):
        likely = [
            isinstance(ascending, list | tuple) and place < len(ascending) and bool(ascending[place]) for place in range(count)
        ]
        raise PlanError(
            f"ascending={ascending!r} is not a direction for each of the {count} that by= names",
            fix=Fix("top.ascending", f"Write: ascending={likely if count > 1 else likely[0]}"),
        )
    return tuple(ascending)


def drop_duplicates(stream: Stream, columns: tuple[str, ...], *, within: Any, name: str | None) -> Stream:
    """See `Stream.drop_duplicates`."""
    by = columns or tuple(stream.schema.names)
    inside = ", ".join([*map(repr, columns), *([f"within={within!r}"] if within is not None else [])])
    node = DropDuplicates(
        where=user_line(),
        input=stream._node,
        by=by,
        name=need_name(name, "drop_duplicates", inside, ()),
        within=None if within is None else at_line(lambda: micros(within, "within")),
        on_error=stream._on_error,
    )
    return stream._then(node)


# --- tables
# ----------------------------------------------------------------------------------------------------------------------------------


def table(source: Any, *, key: str | Sequence[str], refresh: Any, name: str | None) -> Table:
    """See `Pipeline.table`."""
    if not isinstance(source, Source):
        source = at_line(lambda: rows_of(source, "table" if name is None else name))
    if not source.bounded:
        raise PlanError(
            f"a table is read to its end, and {source.name!r} ({source.describe()}) has none",
            fix=Fix("table.unbounded", "Read it as a stream, p.read(...), and join that: .join_asof(stream, on=..., name=...)"),
            where=user_line(),
        )
    keys = (key,) if isinstance(key, str) else tuple(key)
    missing = [column for column in keys if column not in source.schema.names]
    if not keys:
        raise PlanError("key= names no column", fix=Fix("table.key", f'Write: key="{source.schema.names[0]}"'), where=user_line())
    if missing:
        raise PlanError(f"the table has no column {missing[0]!r}. Columns: {', '.join(source.schema.names)}", where=user_line())
    age = None if refresh is None else at_line(lambda: micros(refresh, "refresh"))
    if age is not None and age <= 0:
        raise PlanError(
            f"refresh={refresh!r} is no time to wait", fix=Fix("table.refresh", 'Write: refresh="10m"'), where=user_line()
        )
    return Table(at_line(lambda: check_name(source.name if name is None else name, "a table")), source, keys, age, uuid4().hex)


def rows_of(value: Any, name: str) -> Source:
    """A table in memory as a source: Arrow, pandas, or a Spark DataFrame, which is collected here and now."""
    if hasattr(value, "toArrow"):
        value = value.toArrow()
    elif hasattr(value, "to_records") and hasattr(value, "columns"):
        value = pa.Table.from_pandas(value, preserve_index=False)
    if isinstance(value, pa.Table | pa.RecordBatch):
        return memory(value, name=name)
    raise PlanError(
        f"a table needs a bounded source, an Arrow table or a DataFrame, and got {brief(value)}",
        fix=Fix(
            "table.source", "Give it rows as a source, sources.memory(rows), files, sources.files(path), or a table as it is"
        ),
    )


def lookup(stream: Stream, table: Table, *, on: On | None, how: str, suffix: str) -> Stream:
    """See `Stream.lookup`."""
    if not isinstance(table, Table):
        raise PlanError(
            f"lookup needs a table, and got {brief(table)}",
            fix=Fix("lookup.table", 'Make one of its source. Write: .lookup(p.table(source, key="id"), on="id")'),
            where=user_line(),
        )
    pairs = at_line(lambda: pairs_of(table.key if on is None else on))
    node = Lookup(where=user_line(), input=stream._node, table=table, on=pairs, how=how, suffix=suffix, on_error=stream._on_error)
    return stream._then(node)


# --- arguments
# ----------------------------------------------------------------------------------------------------------------------------------


def check_sides(left: Stream, right: Any, verb: str) -> None:
    """Both are streams of one pipeline."""
    if type(left) is not type(right):
        raise PlanError(
            f"{verb} needs a stream, and got {brief(right)}",
            fix=Fix("join.stream", "Read it with p.read(source); a table is looked up. Write: .lookup(table, on=...)"),
            where=user_line(),
        )
    if left._pipeline is not right._pipeline:
        raise PlanError(
            f"{verb} needs streams of one pipeline",
            fix=Fix("join.pipeline", "Read both from the same pen.Pipeline"),
            where=user_line(),
        )


def pairs_of(on: On) -> tuple[tuple[str, str], ...]:
    """The columns that must be equal: (left, right)."""
    if isinstance(on, str):
        return ((on, on),)
    pairs = tuple(on.items()) if isinstance(on, Mapping) else tuple((name, name) for name in on)
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise PlanError(
            f"on={on!r} names no columns", fix=Fix("join.on", 'Write: on="id", or on=["x", "y"], or on={"order_id": "id"}')
        )
    return pairs


def bounds_of(within: object) -> tuple[int, int]:
    """How far apart two rows may be: the right one's time minus the left one's."""
    if isinstance(within, tuple | list) and len(within) == 2:
        return micros(within[0], "within"), micros(within[1], "within")
    raise PlanError(
        f"within={within!r} says nothing of before and after",
        fix=Fix(
            "join.within",
            "Give the bounds of the right side's time minus the left's: both ways, or only after."
            ' Write: within=("-5m", "5m"), or within=("0s", "5m")',
        ),
    )
