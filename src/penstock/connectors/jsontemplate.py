"""Lines of JSON that differ in their values only, decoded all at once.

Programs write JSON with the same fields in the same order and the same spaces on every line. Such lines have a **template**:
constant texts with a value between each two.

    {"user":"ann","price":3,"tags":["x"]}
    --------###---------#---------#---      constant texts (-) and values (#)

A template is learned from one line, which is read by the standard library's parser. Another line fits it if its bytes are exactly
the constant texts, in order, with a valid value in each place. Then it is the first line with other values, so it is JSON, and its
fields are where the template says. Nothing else is assumed: a line that fits no template is for the exact decoder.

1. The quotes of all lines are found at once, and a value is looked for where the template has it, counted in quotes: each text lies
   between two quotes, each number between the quote before it and the one behind it (or the end of the line).
2. A text is valid if it holds no quote (it lies between two that follow each other), no backslash, no control character, and is
   UTF-8. Lines with backslashes and control characters are never tried; UTF-8 is the caller's business.
3. In the place of a number, `true`, `false` or `null` any of these may stand.
4. Only values of wanted columns are made into Arrow arrays; the others are checked where they stand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Lines", "Template"]

Places = npt.NDArray[np.int64]
"""Byte positions in a block, one per line."""

_STRUCTURE = rb"[ :,{}\[\]]*"
_BETWEEN_TEXTS = re.compile(rb"(%b)(?:(-?\d[\d.eE+-]*|true|false|null)(%b))?" % (_STRUCTURE, _STRUCTURE))
_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_WORDS = pa.array(["true", "false", "null"])


class Lines:
    """The lines of a block, each ended by a line break, and where their quotes are."""

    def __init__(self, block: bytes) -> None:
        assert block.endswith(b"\n"), "whole lines"
        self.block = block
        self.chars = np.frombuffer(block, np.uint8)
        control = _seldom(self.chars < 0x20)
        is_break = self.chars[control] == 0x0A
        self.breaks: Places = control[is_break]
        self.starts: Places = np.concatenate([[0], self.breaks[:-1] + 1])
        self.ends: Places = self.breaks - (self.chars[self.breaks - 1] == 0x0D)
        self.quotes: Places = np.flatnonzero(self.chars == ord('"'))
        self._control: Places = control[~is_break]
        self._first: Places | None = None  # number of each line's first quote, and one more; None: not needed yet

    def __len__(self) -> int:
        return len(self.breaks)

    def text(self, line: int) -> bytes:
        """One line without its line break."""
        return self.block[self.starts[line] : self.ends[line]]

    def only(self, lines: Places) -> bytes:
        """These lines with their line breaks."""
        return b"".join(self.block[self.starts[line] : self.breaks[line] + 1] for line in lines)

    def plain(self) -> Places:
        """The lines without backslashes and control characters."""
        odd = self._control
        if len(odd):
            odd = odd[odd != self.ends[np.searchsorted(self.breaks, odd)]]  # \r may stand before \n
        if b"\\" in self.block:
            odd = np.concatenate([odd, np.flatnonzero(self.chars == ord("\\"))])
        every = np.arange(len(self))
        return np.delete(every, np.searchsorted(self.breaks, odd)) if len(odd) else every

    def quoted(self, lines: Places, count: int) -> tuple[Places, Places]:
        """Those of these lines that have `count` quotes, and where the first of them are, the second, and so on."""
        if len(lines) == len(self) and len(self.quotes) == count * len(self):
            # As many as if every line had its own, and if one has not, its quotes are not where the template says.
            return lines, self.quotes.reshape(len(lines), count).T.copy()
        if self._first is None:
            self._first = np.searchsorted(self.quotes, np.append(self.starts, len(self.chars)))
        lines = lines[self._first[lines + 1] - self._first[lines] == count]
        return lines, self.quotes[self._first[lines] + np.arange(count)[:, None]]


@dataclass(frozen=True, slots=True)
class _Value:
    """A value's place: from `before` bytes behind quote number `quote` to `behind` bytes before the next quote or the line's end."""

    column: str | None  # None: not wanted
    text: bool
    quote: int
    before: int
    behind: int


class Template:
    """What lines have in common. `learn` makes it."""

    def __init__(self, constants: list[bytes], values: list[_Value], quotes: int, schema: pa.Schema) -> None:
        assert len(constants) == len(values) + 1, "a constant text before, between and behind values"
        self._constants = constants
        self._words = [list(_words(constant)) for constant in constants]
        self._values = values
        self._quotes = quotes
        self._schema = schema

    @staticmethod
    def learn(line: bytes, schema: pa.Schema) -> Template | None:
        """The template of a line without backslashes and control characters; None if it has none that would serve `schema`."""
        try:
            if not isinstance(json.loads(line.decode()), dict):
                return None
        except (ValueError, RecursionError):
            return None
        parts = line.split(b'"')
        between, texts = parts[0::2], parts[1::2]
        constants: list[bytes] = []
        values: list[_Value] = []
        keys: list[str] = []
        depth = 0
        constant = b""
        for number, structure in enumerate(between):
            found = _BETWEEN_TEXTS.fullmatch(structure)
            if found is None:
                return None
            left, scalar, right = found.groups()
            constant += left
            depth += _opened(left)
            if scalar is not None:
                values.append(_Value(keys[-1] if depth == 1 else None, False, 2 * number - 1, len(left) + 1, len(right)))
                constants.append(constant)
                constant = right
                depth += _opened(right)
            if number == len(texts):
                break
            constant += b'"'
            if between[number + 1].lstrip(b" ").startswith(b":"):
                constant += texts[number]
                if depth == 1:
                    keys.append(texts[number].decode())
            else:
                values.append(_Value(keys[-1] if depth == 1 else None, True, 2 * number, 1, 0))
                constants.append(constant)
                constant = b""
            constant += b'"'
        values = [value if value.column in schema.names else _unwanted(value) for value in values]
        if not texts or len(set(keys)) < len(keys) or not _serves(schema, keys, values):
            return None
        return Template([*constants, constant], values, 2 * len(texts), schema)

    def decode(self, block: Lines, lines: Places) -> tuple[Places, pa.RecordBatch]:
        """Those of these lines that fit, and their rows. Raises ArrowInvalid if a value fits JSON, but not its column."""
        lines, quotes = block.quoted(lines, self._quotes)
        starts, ends = self._places(block, lines, quotes)
        fits = self._right_lengths(block, lines, starts, ends)
        if not fits.all():
            lines, starts, ends = lines[fits], [each[fits] for each in starts], [each[fits] for each in ends]
        if not len(lines):
            return lines, pa.RecordBatch.from_pylist([], schema=self._schema)
        fits = self._right_bytes(block, lines, ends)
        found: dict[str, tuple[pa.Array, bool]] = {}
        for value, start, end in zip(self._values, starts, ends):
            if value.text and value.column is None:
                continue
            texts = _texts(block.block, start, end)
            if not value.text:
                field = None if value.column is None else self._schema.field(value.column)
                fits &= _valid(texts, (block.chars[start] == ord("0")) & (end - start > 1), field)
            if value.column is not None:
                found[value.column] = (texts, value.text)
        if not fits.all():
            mask = pa.array(fits)
            lines, found = lines[fits], {name: (texts.filter(mask), text) for name, (texts, text) in found.items()}
        arrays = [_array(*found.get(field.name, (None, False)), field, len(lines)) for field in self._schema]
        return lines, pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _places(self, block: Lines, lines: Places, quotes: Places) -> tuple[list[Places], list[Places]]:
        """Where the values of each place start and end."""
        starts, ends = [], []
        for value in self._values:
            last = value.quote + 1 == self._quotes
            starts.append(quotes[value.quote] + value.before)
            ends.append((block.ends[lines] if last else quotes[value.quote + 1]) - value.behind)
        return starts, ends

    def _right_lengths(self, block: Lines, lines: Places, starts: list[Places], ends: list[Places]) -> npt.NDArray[np.bool_]:
        """Where there is just as much room between values as the constant texts take, and each number has a digit."""
        fits = np.ones(len(lines), bool)
        for constant, end, start in zip(self._constants, [block.starts[lines], *ends], [*starts, block.ends[lines]]):
            fits &= start - end == len(constant)
        for value, start, end in zip(self._values, starts, ends):
            if not value.text:
                fits &= start < end
        return fits

    def _right_bytes(self, block: Lines, lines: Places, ends: list[Places]) -> npt.NDArray[np.bool_]:
        """Where the constant texts stand between the values."""
        fits = np.ones(len(lines), bool)
        for words, place in zip(self._words, [block.starts[lines], *ends]):
            for at, word in words:
                there = np.ndarray((len(block.chars) - at - word.itemsize + 1,), word.dtype, block.block, at, (1,))
                fits &= there[place] == word
        return fits


def _words(constant: bytes) -> Iterator[tuple[int, np.unsignedinteger[Any]]]:
    """A text in pieces of 8 bytes, or less if it is shorter, as numbers; the last one may overlap that before it."""
    width = next(width for width in (8, 4, 2, 1) if width <= len(constant))
    for at in {*range(0, len(constant) - width, width), len(constant) - width}:
        yield at, np.frombuffer(constant, f"<u{width}", 1, at)[0]


def _seldom(mask: npt.NDArray[np.bool_]) -> Places:
    """Where `mask` is true. Several times faster than flatnonzero if that is seldom, as line breaks are."""
    eights = mask[: len(mask) // 8 * 8].view(np.uint64)
    at = np.flatnonzero(eights != 0)
    if len(at) + np.count_nonzero(mask[len(mask) // 8 * 8 :]) != np.count_nonzero(mask):
        return np.flatnonzero(mask)  # some eight have two
    # A true byte is a 1. Multiplied by this number it brings to the top how many bytes stand below it.
    inside = (eights[at] * np.uint64(0x0001020304050607)) >> np.uint64(56)
    tail = np.flatnonzero(mask[len(mask) // 8 * 8 :]) + len(mask) // 8 * 8
    return np.concatenate([at * 8 + inside.astype(np.int64), tail])


def _opened(structure: bytes) -> int:
    """How much deeper the nesting is behind these brackets."""
    return structure.count(b"{") + structure.count(b"[") - structure.count(b"}") - structure.count(b"]")


def _unwanted(value: _Value) -> _Value:
    return _Value(None, value.text, value.quote, value.before, value.behind)


def _serves(schema: pa.Schema, keys: list[str], values: list[_Value]) -> bool:
    """Whether every column is made from one value, of a kind that is known here, or stands nowhere and may be null."""
    places: dict[str, list[bool]] = {}
    for value in values:
        if value.column is not None:
            places.setdefault(value.column, []).append(value.text)
    for field in schema:
        kinds = places.get(field.name, [])
        if field.name not in keys:
            if not field.nullable:
                return False
        elif len(kinds) != 1 or not (_from_text(field.type) if kinds[0] else _from_scalar(field.type)):
            return False
    return True


def _from_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _from_scalar(kind: pa.DataType) -> bool:
    numeric = pa.types.is_signed_integer(kind) or kind in (pa.float32(), pa.float64())
    return bool(numeric or pa.types.is_boolean(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"))


def _texts(block: bytes, starts: Places, ends: Places) -> pa.Array:
    """The bytes from each start to its end. They follow each other, so with what lies between they are one array of texts."""
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = starts, ends, len(block)
    both = pa.StringArray.from_buffers(2 * len(starts), pa.py_buffer(offsets), pa.py_buffer(block))
    return pc.take(both, pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)), boundscheck=False)


def _valid(texts: pa.Array, zero_first: npt.NDArray[np.bool_], field: pa.Field | None) -> npt.NDArray[np.bool_]:
    """Which of these, found outside quotes, are values of JSON and, if they are wanted, of the kind their column needs."""
    if field is not None and pa.types.is_boolean(field.type):
        return np.asarray(pc.is_in(texts, _WORDS if field.nullable else _WORDS[:2]))
    # Mostly these are digits alone, which is found out ten times faster than by the pattern.
    if pc.all(pc.ascii_is_decimal(texts)).as_py() and not zero_first.any():
        return np.ones(len(texts), bool)
    if field is None:
        return np.asarray(pc.or_(pc.match_substring_regex(texts, _NUMBER), pc.is_in(texts, _WORDS)))
    valid = pc.match_substring_regex(texts, _NUMBER if pa.types.is_floating(field.type) else _INTEGER)
    return np.asarray(pc.or_(valid, pc.equal(texts, "null")) if field.nullable else valid)


def _array(texts: pa.Array | None, text: bool, field: pa.Field, rows: int) -> pa.Array:
    """The values of a column, converted as the exact decoder does it."""
    if texts is None:
        return pa.nulls(rows, field.type)
    if text:
        return texts if texts.type == field.type else texts.cast(field.type)
    if field.nullable:
        texts = pc.if_else(pc.equal(texts, "null"), None, texts)
    if pa.types.is_boolean(field.type):
        return pc.equal(texts, "true")
    if pa.types.is_timestamp(field.type):
        return texts.cast(pa.int64()).cast(field.type)
    return texts.cast(field.type)
