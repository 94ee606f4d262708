"""A block of JSON lines into Arrow at once, by pyarrow's reader.

The reader is lenient where a stream must not be, and strict where a record may lack a part. So it is asked for a schema in which
everything may be null, and what comes back is checked and made exactly what the columns are, at every depth:

1. Each line is exactly one object, the bytes are UTF-8, and no number is NaN or infinite.
2. Nothing is null where the schema says "not null"; what stands under a record that is null itself is not asked.
3. Times are read as text or as numbers and cast afterwards: the reader's own parser takes no zone for UTC. Which of the two each
   column of times is, is learned from the lines.
4. Objects that become maps are rewritten as lists before, see `jsonmaps`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.connectors.fileformat import Undecodable, check_utf8
from penstock.connectors.jsonmaps import ITEMS, KEY, VALUE, VALUES, Maps, Path
from penstock.connectors.linemarks import Places, seldom
from penstock.errors import ConfigError
from penstock.exact import exactly, one_array, seen_nulls

__all__ = ["BlockForm", "check_lines", "check_readable", "read_block", "read_leaf"]

LINES_FOR_LEARNING = 64
PIECE_BYTES = 1 << 20
_BARE_WORD = re.compile(rb"(?<=[:,\[ \t-])(?:NaN|Inf(?:inity)?)(?=[,}\] \t\r\n])")
"""What the reader takes for a number. It may stand in a text too."""

Chars = npt.NDArray[np.uint8]


class BlockForm:
    """What the reader is asked for to get the columns of `schema`. It changes when times come in another way."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._times = frozenset(path for field in schema for path in _time_paths(field.type, (field.name,)))
        self._numbers: frozenset[Path] = frozenset()
        self._asked = self._form(self._numbers)

    def read(self, block: bytes) -> pa.RecordBatch:
        """A row for each line, or Undecodable. The lines have the right shape."""
        maps = Maps(self.schema)
        written = maps.rewrite(block)
        try:
            return self._read(written, maps)
        except pa.ArrowInvalid as error:
            problem = error
        found = _numbers_in(block, self._times)
        if found != self._numbers:
            before = self._numbers, self._asked
            self._numbers, self._asked = found, self._form(found)
            try:
                return self._read(written, maps)
            except pa.ArrowInvalid as error:
                problem = error
                self._numbers, self._asked = before
        raise Undecodable(str(problem))

    def _form(self, numbers: frozenset[Path]) -> pa.Schema:
        return pa.schema([pa.field(field.name, _read_as(field.type, (field.name,), numbers)) for field in self.schema])

    def _read(self, block: bytes | Chars, maps: Maps) -> pa.RecordBatch:
        try:
            table = pj.read_json(
                pa.BufferReader(pa.py_buffer(block)),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(block) + 1),
                parse_options=pj.ParseOptions(explicit_schema=self._asked, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowNotImplementedError as error:
            raise ConfigError(f"JSON cannot be read with this schema: {error}") from error
        arrays = []
        for field in self.schema:
            whole = maps.made(one_array(table.column(field.name)), field.type, (field.name,))
            if seen_nulls(whole, field) is not None:
                raise Undecodable(f"column {field.name!r} may not be null")
            arrays.append(exactly(whole, field.type, read_leaf))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def read_block(block: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """A row for each line of `block`; raises ArrowInvalid or Undecodable."""
    return BlockForm(schema).read(block)


def read_leaf(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """What was read as text, or as a number, as a value of its column; ArrowInvalid if it is none."""
    if pa.types.is_timestamp(kind) and pa.types.is_integer(array.type):
        array = array.cast(pa.timestamp("us", tz=kind.tz))  # numbers are microseconds, whatever the column's unit is
    found = array if array.type == kind else array.cast(kind)
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(found)).as_py() and len(found) > found.null_count:
        raise pa.ArrowInvalid(f"a number is too large for {kind}")
    if pa.types.is_decimal(kind):
        found.validate(full=True)  # the reader lets more digits pass than the column has
    return found


def check_lines(block: bytes) -> int:
    """The number of lines, if they are UTF-8 and each line's rows are its own; otherwise Undecodable.

    If every line starts with `{` and ends with `}`, no object can span two lines: between `}` and `{` JSON wants a
    comma. So as many objects as lines means one on each.
    """
    chars = np.frombuffer(block, np.uint8)
    ascii, breaks, words = _looked_for(chars)
    if not ascii:
        check_utf8(block)
    last = chars[breaks - 1]
    if (last == 0x0D).any():
        last = chars[breaks - 1 - (last == 0x0D)]
    closed = (last == ord("}")).all()
    if not closed or chars[0] != ord("{") or not (chars[breaks[:-1] + 1] == ord("{")).all():
        raise Undecodable("not one object per line")
    if len(words):
        _check_words(block, words[np.isin(chars.take(words + 1, mode="clip"), (ord("a"), ord("n")))])
    return len(breaks)


def _looked_for(chars: Chars) -> tuple[bool, Places, Places]:
    """Whether all is ASCII, where the line breaks are, and the first letters of NaN and Infinity; in pieces that a cache holds."""
    mask = np.empty(PIECE_BYTES, bool)
    found: dict[int, list[Places]] = {ord("\n"): [], ord("N"): [], ord("I"): []}
    ascii = True
    for start in range(0, len(chars), PIECE_BYTES):
        piece = chars[start : start + PIECE_BYTES]
        ascii = ascii and bool(piece.max() < 0x80)
        for char, places in found.items():
            places.append(seldom(np.equal(piece, char, out=mask[: len(piece)])) + start)
    breaks, nans, infinities = (np.concatenate(places) for places in found.values())
    return ascii, breaks, np.sort(np.concatenate([nans, infinities]))


def _check_words(block: bytes, places: Places) -> None:
    """Undecodable if NaN or Infinity stands where a value stands."""
    done = -1
    for place in places.tolist():
        if place > done and _BARE_WORD.match(block, place):
            start, done = block.rfind(b"\n", 0, place) + 1, block.find(b"\n", place)
            try:
                json.loads(block[start:done], parse_constant=_refuse, parse_int=str)
            except (ValueError, RecursionError) as error:
                raise Undecodable(str(error)) from error


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def check_readable(kind: pa.DataType, name: str) -> None:
    """ConfigError if JSON has nothing for this type."""
    if pa.types.is_map(kind) and not pa.types.is_string(kind.key_type):
        raise ConfigError(f"column {name!r}: JSON cannot be read with this schema: keys in JSON are text, not {kind.key_type}")
    for i in range(kind.num_fields):
        check_readable(kind.field(i).type, name)


def _read_as(kind: pa.DataType, path: Path, numbers: frozenset[Path]) -> pa.DataType:
    """What the reader is asked for: anything may be null, and times are text or numbers."""
    if pa.types.is_timestamp(kind):
        return pa.int64() if path in numbers else pa.string()
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(inner.name, _read_as(inner.type, (*path, inner.name), numbers)) for inner in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _read_as(kind.value_type, (*path, ITEMS), numbers)))
    if pa.types.is_map(kind):
        value = pa.field(VALUE, _read_as(kind.item_type, (*path, VALUES), numbers))
        return pa.list_(pa.struct([pa.field(KEY, pa.string()), value]))
    return kind


def _time_paths(kind: pa.DataType, path: Path) -> Iterator[Path]:
    if pa.types.is_timestamp(kind):
        yield path
    elif pa.types.is_struct(kind):
        for inner in kind:
            yield from _time_paths(inner.type, (*path, inner.name))
    elif pa.types.is_list(kind):
        yield from _time_paths(kind.value_type, (*path, ITEMS))
    elif pa.types.is_map(kind):
        yield from _time_paths(kind.item_type, (*path, VALUES))


def _numbers_in(block: bytes, times: frozenset[Path]) -> frozenset[Path]:
    """The columns of times that are numbers in the first lines that have them."""
    found: dict[Path, bool] = {}
    for line in block.split(b"\n", LINES_FOR_LEARNING)[:-1] if times else ():
        try:
            whole = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for path in times - found.keys():
            for value in _values_at(whole, path):
                found[path] = type(value) is int
                break
    return frozenset(path for path, is_number in found.items() if is_number)


def _values_at(value: Any, path: Path) -> Iterator[Any]:
    """What stands at a path, in all items of lists and maps; nothing where that is null or something else."""
    if not path:
        if value is not None:
            yield value
    elif (isinstance(value, list) and path[0] == ITEMS) or (isinstance(value, dict) and path[0] == VALUES):
        for item in value if isinstance(value, list) else value.values():
            yield from _values_at(item, path[1:])
    elif isinstance(value, dict):
        yield from _values_at(value.get(path[0]), path[1:])
