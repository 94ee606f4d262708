"""Objects of JSON that become maps, rewritten as lists of keys and values: pyarrow's reader knows lists and records, and no maps.

    {"id":1,"tags":{"a":3,"b":4}}
    {"id":1,"tags":[{"k":"a","v":3},{"k":"b","v":4}]}

`Maps.rewrite` does that to a block of lines at once, and `Maps.made` makes maps of what the reader then gives.

1. All quotes, brackets, colons and commas of the block are found at once. What stands in texts is dropped, and what is left has a
   depth: 1 for what stands directly in a line's object. The objects to rewrite are found from the columns down, by names and depth.
2. The reader decides what is JSON, so rewriting must never make a good line of a bad one. An object is rewritten only if its colons
   and commas take turns, as keys and values have them. Each list that the reader gives must come from such an object, and each key
   must be there: a list that stood in the line is no map.
3. Whatever is in doubt is Undecodable, and the lines are for the decoder of single lines: texts or brackets that are not closed, a key
   that stands twice in one map. A name that is written with escapes is not found; then the reader finds an object where a list is
   asked for, and refuses it.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import or_

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.fileformat import Undecodable
from penstock.exact import compact

__all__ = ["ITEMS", "KEY", "VALUE", "VALUES", "Maps", "Path", "has_map"]

Path = tuple[str, ...]
"""Names of fields from a column down; ITEMS is what is in a list, VALUES what is in a map."""
ITEMS, VALUES = "[]", "{}"
KEY, VALUE = "k", "v"

Places = npt.NDArray[np.int64]
"""Byte positions in a block."""
Marks = npt.NDArray[np.int64]
"""Numbers of marks, ascending: quotes, and brackets, colons, commas and line breaks outside of texts."""

QUOTE, OBJECT, OBJECT_END, LIST, LIST_END, COLON, COMMA, BREAK = range(1, 9)
_KIND_OF = np.zeros(256, np.uint8)
_KIND_OF[np.frombuffer(b'"{}[]:,\n', np.uint8)] = np.arange(1, 9)
_STEP = np.array([0, 0, 1, -1, 1, -1, 0, 0, 0], np.int8)
"""By how much each kind of mark goes deeper."""

_NEW_TEXTS = [b'[{"k":', b',"v":', b'},{"k":', b"}]", b"[", b"]"]
OPENED, IS, AND, CLOSED, OPENED_EMPTY, CLOSED_EMPTY = range(6)
_NEW_LENGTHS = np.array([len(text) for text in _NEW_TEXTS])


@cache
def has_map(kind: pa.DataType) -> bool:
    """Whether it is a map or has one inside."""
    return pa.types.is_map(kind) or any(has_map(kind.field(i).type) for i in range(kind.num_fields))


class Maps:
    """The objects of one block that become maps. Of a schema without maps, there is nothing to do."""

    def __init__(self, schema: pa.Schema) -> None:
        self._kind = pa.struct(list(schema))
        self._counts: dict[Path, int] = {}

    def rewrite(self, block: bytes) -> bytes | npt.NDArray[np.uint8]:
        """The block with lists in the place of maps."""
        if not has_map(self._kind):
            return block
        outline = _Outline(block)
        edits = _Edits(outline, self._counts)
        edits.look(self._kind, (), outline.opened(1), 1)
        return edits.applied()

    def made(self, array: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
        """What was read for a value of `kind`, with maps for lists."""
        if not has_map(kind):
            return array
        if pa.types.is_struct(kind):
            children = [self.made(array.field(inner.name), inner.type, (*path, inner.name)) for inner in kind]
            fields = [pa.field(inner.name, child.type) for inner, child in zip(kind, children)]
            return pa.StructArray.from_arrays(children, fields=fields, mask=_nulls(array))
        whole = compact(array)
        if pa.types.is_list(kind):
            items = self.made(whole.values, kind.value_type, (*path, ITEMS))
            return pa.ListArray.from_arrays(whole.offsets, items, mask=_nulls(whole))
        if len(whole) - whole.null_count != self._counts[path]:
            raise Undecodable(f"{'.'.join(path)} is a map, and was no object")
        keys, values = whole.values.field(0), self.made(whole.values.field(1), kind.item_type, (*path, VALUES))
        if whole.values.null_count or keys.null_count or _twice(whole.offsets, keys):
            raise Undecodable(f"{'.'.join(path)} is a map, and has a key twice, or something that is no key")
        return pa.MapArray.from_arrays(whole.offsets, keys, values, mask=_nulls(whole))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _twice(offsets: pa.Array, keys: pa.Array) -> bool:
    """Whether a key stands twice between two offsets."""
    encoded = keys.dictionary_encode()
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets.to_numpy()))
    found = np.sort(owners * max(len(encoded.dictionary), 1) + encoded.indices.to_numpy())
    return bool((found[1:] == found[:-1]).any())


class _Outline:
    """The marks of a block: where they stand, what they are, and how deep it is behind each."""

    def __init__(self, block: bytes) -> None:
        self.chars = np.frombuffer(block, np.uint8)
        kinds = _KIND_OF[self.chars]
        if b"\\" in block:
            kinds[_escaped(self.chars)] = 0
        places = np.flatnonzero(kinds)
        kinds = kinds[places]
        quotes = kinds == QUOTE
        in_text = np.cumsum(quotes, dtype=np.uint8) & 1
        kept = quotes | (in_text == 0)
        self.places: Places = places[kept]
        self.kinds = kinds[kept]
        self.depth = np.cumsum(_STEP[self.kinds], dtype=np.int32)
        ends = self.kinds == BREAK
        if np.count_nonzero(ends) != np.count_nonzero(self.chars == 0x0A) or self.depth[ends].any():
            raise Undecodable("a text or a bracket is not closed")

    def opened(self, depth: int) -> Marks:
        """The brackets that open what has this depth."""
        return np.flatnonzero((self.depth == depth) & (_STEP[self.kinds] > 0))

    def ends(self, opened: Marks, depth: int) -> Marks:
        """The bracket that closes each of these."""
        closing = np.flatnonzero((self.depth == depth - 1) & (_STEP[self.kinds] < 0))
        return closing[np.searchsorted(closing, opened)]

    def between(self, opened: Marks, ends: Marks, marks: Marks) -> tuple[Marks, Marks]:
        """Those of `marks` that stand within one of these pairs of brackets, and the number of the pair."""
        if not len(opened):
            return marks[:0], marks[:0]
        owners = np.searchsorted(opened, marks) - 1
        within = (owners >= 0) & (marks < ends[owners])
        return marks[within], owners[within]

    def colons(self, depth: int) -> Marks:
        return np.flatnonzero((self.depth == depth) & (self.kinds == COLON))

    def named(self, colons: Marks, name: str) -> Marks:
        """The colons behind this name."""
        text = np.frombuffer(name.encode(), np.uint8)
        if not len(colons) or colons[0] < 2:
            return colons[:0]
        starts = self.places[colons - 2] + 1
        colons = colons[
            (self.kinds[colons - 1] == QUOTE)
            & (self.kinds[colons - 2] == QUOTE)
            & (self.places[colons - 1] - starts == len(text))
        ]
        starts = self.places[colons - 2] + 1
        differ = reduce(or_, (self.chars[starts + at] != char for at, char in enumerate(text)), np.zeros(len(colons), bool))
        return colons[~differ]

    def opened_behind(self, colons: Marks) -> Marks:
        """The brackets that open the values behind these colons, where there are brackets."""
        behind = colons + 1
        found: Marks = behind[_STEP[self.kinds[behind]] > 0]
        return found


def _escaped(chars: npt.NDArray[np.uint8]) -> Places:
    """The places behind an odd number of backslashes."""
    slashes = np.flatnonzero(chars == ord("\\"))
    cuts = np.flatnonzero(np.diff(slashes) != 1)
    firsts = slashes[np.concatenate([[0], cuts + 1])]
    lasts = slashes[np.concatenate([cuts, [len(slashes) - 1]])]
    behind: Places = lasts[(lasts - firsts) % 2 == 0] + 1
    return behind


class _Edits:
    """What to write in the place of which marks, and how many objects were rewritten at each path."""

    def __init__(self, outline: _Outline, counts: dict[Path, int]) -> None:
        self._outline = outline
        self._counts = counts
        self._marks: list[Marks] = []
        self._texts: list[npt.NDArray[np.int8]] = []

    def look(self, kind: pa.DataType, path: Path, opened: Marks, depth: int) -> None:
        """`opened` opens values that are to be of `kind`, all of this depth."""
        outline = self._outline
        opened = opened[outline.kinds[opened] == (LIST if pa.types.is_list(kind) else OBJECT)]
        ends = outline.ends(opened, depth)
        if pa.types.is_map(kind):
            colons = self._rewritten(path, opened, ends, depth)
            if has_map(kind.item_type):
                self.look(kind.item_type, (*path, VALUES), outline.opened_behind(colons), depth + 1)
        elif pa.types.is_list(kind):
            items, _ = outline.between(opened, ends, outline.opened(depth + 1))
            self.look(kind.value_type, (*path, ITEMS), items, depth + 1)
        else:
            colons, _ = outline.between(opened, ends, outline.colons(depth))
            for inner in kind:
                if has_map(inner.type):
                    values = outline.opened_behind(outline.named(colons, inner.name))
                    self.look(inner.type, (*path, inner.name), values, depth + 1)

    def _rewritten(self, path: Path, opened: Marks, ends: Marks, depth: int) -> Marks:
        """Note what to write for these objects; the colons in them."""
        outline = self._outline
        self._counts[path] = len(opened)
        at_depth = np.flatnonzero((outline.depth == depth) & ((outline.kinds == COLON) | (outline.kinds == COMMA)))
        inner, owners = outline.between(opened, ends, at_depth)
        is_colon = outline.kinds[inner] == COLON
        same = owners[1:] == owners[:-1]
        outer = np.ones(len(inner) + 1, bool)
        outer[1:-1] = ~same
        full = np.zeros(len(opened), bool)
        full[owners] = True
        if (
            (outline.kinds[ends] != OBJECT_END).any()
            or (same & (is_colon[1:] == is_colon[:-1])).any()
            or not is_colon[outer[1:] | outer[:-1]].all()
            or (ends[~full] != opened[~full] + 1).any()
        ):
            raise Undecodable(f"{'.'.join(path)} is a map, and no object has such marks")
        self._marks += [opened, inner, ends]
        self._texts += [
            np.where(full, OPENED, OPENED_EMPTY).astype(np.int8),
            np.where(is_colon, IS, AND).astype(np.int8),
            np.where(full, CLOSED, CLOSED_EMPTY).astype(np.int8),
        ]
        found: Marks = inner[is_colon]
        return found

    def applied(self) -> npt.NDArray[np.uint8]:
        """The block with all of that written."""
        marks, texts = np.concatenate(self._marks), np.concatenate(self._texts)
        order = np.argsort(marks)
        places, texts = self._outline.places[marks[order]], texts[order]
        lengths = _NEW_LENGTHS[texts]
        copies = np.ones(len(self._outline.chars), np.intp)
        copies[places] = lengths
        written = np.repeat(self._outline.chars, copies)
        starts = places + np.cumsum(lengths - 1) - (lengths - 1)
        for number, text in enumerate(_NEW_TEXTS):
            at = starts[texts == number]
            for offset, char in enumerate(text):
                written[at + offset] = char
        return written
