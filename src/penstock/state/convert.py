"""State that was written by an older program, in the columns that its step keeps now.

Columns, and the fields within them, are found by name. What is the same stays as it is; a number may become a wider one, and
what was never null may be null from now on; what is new is filled. `differences` says what is not possible, by the types alone and
before anything is read; `converted` does the rest, when a table is opened.

1. A path is a column and the fields below it: `("value", "place", "country")`. Lists and maps have no name of their own: a path
   goes through them.
2. Whoever opens a table converts its files once. The next snapshot writes them anew, so no file of an older layout is ever named by a
   newer checkpoint, and what was filled stays what it was then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Conversion", "Converter", "Difference", "Path", "Wanted", "converted", "differences", "paths"]

Path = tuple[str, ...]
Tree = Mapping[str, tuple[Any, Any]]
"""The fields of a class: the value of those that have a default (as an Arrow scalar, or None), and the fields below each."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The value columns of a state as its step has them.

    Args:
        grows: what may be added: "fields" of classes, "aggregates", or "" for nothing.
        fills: says what columns that are new hold in rows from before. It may call a user's code, so it is asked only when there are some.
        defaults: of columns that hold classes, what new fields are.
        endless: what is kept is never closed and forgotten.
        from_start: aggregates that must have had every row that is withdrawn from them, and the steps that withdraw them.
    """

    values: pa.Schema
    grows: str = ""
    fills: Callable[[], Mapping[str, pa.Scalar]] = dict
    defaults: Mapping[str, Tree] = field(default_factory=dict)
    endless: bool = False
    from_start: Callable[[], Mapping[str, tuple[str, ...]]] = dict


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was said of the names: new path to old, and which old paths count as gone."""

    renamed: Mapping[Path, Path] = field(default_factory=dict)
    dropped: frozenset[Path] = frozenset()

    def about(self, path: Path, place: Path) -> bool:
        """Whether anything at this path or below it was named; `place` is where it stood."""
        old = any(named[: len(place)] == place for named in (*self.renamed.values(), *self.dropped))
        return old or any(named[: len(path)] == path for named in self.renamed)

    def source(self, path: Path, old: Path, there: Mapping[str, Any]) -> Path | None:
        """Where the field at the new `path` stood, below `old`; None if it is new."""
        place = self.renamed.get(path, (*old, path[-1]))
        taken = place in self.renamed.values() and self.renamed.get(path) != place
        return None if place[-1] not in there or place in self.dropped or taken else place


@dataclass(frozen=True, slots=True)
class Difference:
    """`what` is "added", "removed" or "changed"; `path` is the new one, or the old one of what was removed."""

    what: str
    path: Path
    old: pa.Field | None = None
    new: pa.Field | None = None


def paths(schema: Any, above: Path = ()) -> Iterator[Path]:
    """Every column, and every field within."""
    for inner in schema:
        yield (*above, inner.name)
        record = _record(inner.type)
        if record is not None:
            yield from paths(record, (*above, inner.name))


def differences(old: pa.Schema, wanted: Wanted, conversion: Conversion) -> Iterator[Difference]:
    """What a program that wants these columns does not find, finds too much, or finds in another type."""
    yield from _fields(list(old), list(wanted.values), (), (), wanted, conversion, wanted.defaults)


def _fields(
    old: list[pa.Field],
    new: list[pa.Field],
    path: Path,
    place: Path,
    wanted: Wanted,
    conversion: Conversion,
    defaults: Mapping[str, Any],
) -> Iterator[Difference]:
    there, found = {each.name: each for each in old}, set()
    for each in new:
        here = (*path, each.name)
        source = conversion.source(here, place, there)
        if source is not None:
            found.add(source[-1])
            tree = defaults.get(each.name, {}) if not path else defaults.get(each.name, (None, {}))[1]
            yield from _field(there[source[-1]], each, here, source, wanted, conversion, tree)
        elif not path or (defaults.get(each.name, (None,))[0] is None and not each.nullable):
            yield Difference("added", here, new=each)
    for name, each in there.items():
        if name not in found and (*place, name) not in conversion.dropped:
            yield Difference("removed", (*place, name), old=each)


def _field(
    old: pa.Field, new: pa.Field, path: Path, place: Path, wanted: Wanted, conversion: Conversion, tree: Tree
) -> Iterator[Difference]:
    before, after = _layers(old), _layers(new)
    inner = _record(new.type)
    if [kind for kind, _ in before] != [kind for kind, _ in after] or any(
        was and not may for (_, was), (_, may) in zip(before, after, strict=True)
    ):
        yield Difference("changed", path, old, new)
    elif inner is not None:
        yield from _fields(list(_record(old.type) or ()), list(inner), path, place, wanted, conversion, tree)
    elif not _widens(old.type, new.type):
        yield Difference("changed", path, old, new)


def _layers(field: pa.Field) -> list[tuple[Any, bool]]:
    """The field, the lists and maps that it is made of, down to whatever has fields or is a plain value; and what may be null."""
    kind = field.type
    if pa.types.is_list(kind):
        return [("list", field.nullable), *_layers(kind.value_field)]
    if pa.types.is_map(kind):
        return [(f"map of {kind.key_type}", field.nullable), *_layers(kind.item_field)]
    return [("struct" if pa.types.is_struct(kind) else "value", field.nullable)]


def _record(kind: pa.DataType) -> Any:
    """The fields below a column: of a struct, or of the structs that it has many of."""
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return kind if pa.types.is_struct(kind) else None


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether each value of one type is one of the other, and means the same."""
    t = pa.types
    while (t.is_list(old) and t.is_list(new)) or (t.is_map(old) and t.is_map(new)):
        old, new = (old.item_type, new.item_type) if t.is_map(old) else (old.value_type, new.value_type)
    for family in (t.is_signed_integer, t.is_unsigned_integer, t.is_floating):
        if family(old) and family(new):
            return bool(old.bit_width <= new.bit_width)
    return bool(old == new)


# --- columns


@dataclass(frozen=True, slots=True)
class Converter:
    """Makes rows of a run in the columns that are wanted."""

    wanted: Wanted | None
    conversion: Conversion

    def __call__(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """The rows of a run, as a run of this schema."""
        assert self.wanted is not None, "timers have no columns to convert"
        return converted(batch, schema, self.wanted, self.conversion)


def converted(batch: pa.RecordBatch, schema: pa.Schema, wanted: Wanted, conversion: Conversion) -> pa.RecordBatch:
    """The rows of a run in the columns of `schema`. Columns that stay are not copied."""
    columns = dict(zip(batch.schema.names, batch.columns))
    arrays = []
    for each in schema:
        if each.name not in wanted.values.names:  # what every run has, and keys
            arrays.append(columns[each.name])
            continue
        source = conversion.source((each.name,), (), columns)
        if source is None:
            arrays.append(_filled(wanted.fills().get(each.name), each.type, batch.num_rows))
        else:
            tree = wanted.defaults.get(each.name, {})
            arrays.append(_converted(columns[source[-1]], each.type, (each.name,), source, conversion, tree))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _converted(array: pa.Array, kind: pa.DataType, path: Path, place: Path, conversion: Conversion, tree: Tree) -> pa.Array:
    t = pa.types
    if array.type == kind and not conversion.about(path, place):
        return array
    if not t.is_nested(kind):
        return array.cast(kind)
    if array.offset:
        array = array.take(pa.array(range(len(array)), pa.int64()))
    mask = array.is_null() if array.null_count else None
    if t.is_struct(kind):
        there = {each.name: array.field(i) for i, each in enumerate(array.type)}
        children = []
        for each in kind:
            here = (*path, each.name)
            default, below = tree.get(each.name, (None, {}))
            source = conversion.source(here, place, there)
            if source is None:
                children.append(_filled(default, each.type, len(array)))
            else:
                children.append(_converted(there[source[-1]], each.type, here, source, conversion, below))
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if t.is_list(kind):
        values = _converted(array.values, kind.value_type, path, place, conversion, tree)
        return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=mask)
    items = _converted(array.items, kind.item_type, path, place, conversion, tree)
    made = pa.MapArray.from_arrays(array.offsets, array.keys, items, type=kind)
    return made if mask is None else pc.if_else(mask, pa.scalar(None, kind), made)


def _filled(value: pa.Scalar | None, kind: pa.DataType, rows: int) -> pa.Array:
    if value is None or not value.is_valid:
        return pa.nulls(rows, kind)
    return pa.array([value.as_py()] * rows, kind) if pa.types.is_nested(kind) else pa.repeat(value.cast(kind), rows)
