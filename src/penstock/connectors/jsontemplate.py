"""Lines of JSON that differ in their values only, decoded all at once.

Programs write JSON with the same fields in the same order and the same spaces on every line. Such lines have a **template**:
constant texts with a value between each two.

    {"user":"ann","price":3,"tags":["x"]}
    --------###---------#---------#---      constant texts (-) and values (#)

A template is learned from one line, which is read by the standard library's parser. Another line fits it if its bytes are exactly
the constant texts, in order, with a valid value in each place. Then it is the first line with other values, so it is JSON, and its
fields are where the template says. Nothing else is assumed: a line that fits no template is for the exact decoder.

1. The quotes of all lines are found at once, and a value is looked for where the template has it, counted in quotes: each text lies
   between two quotes, each number between the quote before it and the one behind it (or the end of the line). Lines like those of the
   block before need not even that, see `jsonlayout`.
2. A text is valid if it holds no quote (it lies between two that follow each other), no backslash, no control character, and is
   UTF-8. Lines with backslashes and control characters are never tried; UTF-8 is the caller's business.
3. In the place of a number, `true`, `false` or `null` any of these may stand.
4. Only values of wanted columns are made into Arrow arrays; the others are checked where they stand.
5. A record inside a record is there in all lines of a template, or in none. What is in a list has no place of its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.digits import numbers
from penstock.connectors.jsonblock import read_leaf
from penstock.connectors.jsonlayout import Layout
from penstock.connectors.linemarks import Lines, Pieces, Places, Spans
from penstock.exact import exactly

__all__ = ["Template"]

LINES_FOR_LEARNING = 256

_STRUCTURE = rb"[ :,{}\[\]]*"
_BETWEEN_TEXTS = re.compile(rb"(%b)(?:(-?\d[\d.eE+-]*|true|false|null)(%b))?" % (_STRUCTURE, _STRUCTURE))
_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_WORDS = ["true", "false", "null"]

Path = tuple[str, ...]
_NOTHING = pa.field("null", pa.null())
"""What stands in the place of a record that is null."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A value's place: from `before` bytes behind one mark to `behind` bytes before the next."""

    path: Path | None  # the names of the fields it is in, from a column down; None: not wanted
    text: bool
    mark: int
    before: int
    behind: int


class Template:
    """What lines have in common. `learn` makes it."""

    def __init__(
        self, constants: list[bytes], values: list[_Value], marks: int, schema: pa.Schema, records: frozenset[Path]
    ) -> None:
        assert len(constants) == len(values) + 1, "a constant text before, between and behind values"
        self._schema = schema
        self._fields = _fields(schema)
        self._records = records
        self._quotes = marks - 2
        # A constant text reaches from where a value ends, or the line's start, to where the next starts, or the line's end.
        from_marks = [0, *(value.mark + 1 for value in values)]
        from_bytes = [0, *(-value.behind for value in values)]
        to_marks = [*(value.mark for value in values), marks - 1]
        to_bytes = [*(value.before for value in values), 0]
        self._constants, self._from_bytes = constants, from_bytes
        self._from, self._to = np.array(from_marks), np.array(to_marks)
        self._around = np.array([value.before + value.behind for value in values], np.int64)
        self._between = np.array([len(c) + a - b for c, a, b in zip(constants, from_bytes, to_bytes)])
        # Values that are looked at: the wanted ones, and what is no text.
        looked_at = [number for number, value in enumerate(values) if value.path is not None or not value.text]
        self._values = [values[number] for number in looked_at]
        self._value_marks = np.array([mark for value in self._values for mark in (value.mark, value.mark + 1)], np.int64)
        self._value_bytes = np.array([byte for value in self._values for byte in (value.before, -value.behind)], np.int64)
        self._layout = Layout(constants, looked_at)

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
        outline = _Outline()
        constant = b""
        for number, structure in enumerate(between):
            found = _BETWEEN_TEXTS.fullmatch(structure)
            if found is None:
                return None
            left, scalar, right = found.groups()
            constant += left
            outline.go(left)
            if scalar is not None:
                values.append(_Value(outline.value(), False, 2 * number, len(left) + 1, len(right)))
                constants.append(constant)
                constant = right
                outline.go(right)
            if number == len(texts):
                break
            constant += b'"'
            if between[number + 1].lstrip(b" ").startswith(b":"):
                constant += texts[number]
                outline.key(texts[number].decode())
            else:
                values.append(_Value(outline.value(), True, 2 * number + 1, 1, 0))
                constants.append(constant)
                constant = b""
            constant += b'"'
        constants.append(constant)
        wanted = _fields(schema)
        values = [value if value.path in wanted else replace(value, path=None) for value in values]
        if not texts or outline.twice or not all(_serves(field, (field.name,), outline, values) for field in schema):
            return None
        return Template(constants, values, 2 * len(texts) + 2, schema, frozenset(outline.records))

    def decode(self, block: Lines, lines: Places) -> tuple[Places, pa.RecordBatch]:
        """Those of these lines that fit, and their rows. Raises ArrowInvalid if a value fits JSON, but not its column."""
        found = None
        if len(lines) == len(block):
            if not self._layout.known:
                first = block.first(LINES_FOR_LEARNING)
                self._fitting(first, np.arange(len(first)))
            found = self._layout.values(block)
        if found is None:
            lines, found = self._fitting(block, lines)
        if not len(lines):
            return lines, pa.RecordBatch.from_pylist([], schema=self._schema)
        made: list[pa.Array] = []
        fits = np.ones(len(lines), bool)
        for value, each in zip(self._values, found):
            field = None if value.path is None else self._fields[value.path]
            pieces = block.alike(each) if isinstance(each, Spans) else each
            whole = numbers(pieces) if pieces is not None and not value.text and _whole(field) else None
            if whole is not None:
                made.append(pa.array(whole))
                continue
            if pieces is not None:
                made.append(_texts_alike(pieces))
            else:
                assert isinstance(each, Spans), "pieces are alike"
                made.append(_texts(block, each))
            if not value.text:
                fits &= _valid(made[-1], field)
        if not fits.all():
            mask = pa.array(fits)
            lines, made = lines[fits], [each.filter(mask) for each in made]
        found_at = {v.path: _array(each, v, self._fields[v.path]) for v, each in zip(self._values, made) if v.path}
        arrays = [self._column(field, (field.name,), found_at, len(lines)) for field in self._schema]
        return lines, pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, field: pa.Field, path: Path, found: dict[Path, pa.Array], rows: int) -> pa.Array:
        """The values of a field: as they were found, or made of those inside it."""
        if path in found and not pa.types.is_struct(field.type):
            return found[path]
        if path not in self._records:
            return exactly(pa.nulls(rows, field.type), field.type)
        parts = [self._column(inner, (*path, inner.name), found, rows) for inner in field.type]
        return pa.StructArray.from_arrays(parts, fields=list(field.type))

    def _fitting(self, block: Lines, lines: Places) -> tuple[Places, list[Pieces | Spans]]:
        """Those of these lines that have the constant texts, by where their quotes are, and the values looked at."""
        lines, marks = block.marks(lines, self._quotes)
        places = marks.take(self._value_marks, axis=1) + self._value_bytes  # start and end of each value
        wrong = _any(marks.take(self._to, axis=1) - marks.take(self._from, axis=1) != self._between)
        wrong |= _any(places[:, 1::2] < places[:, 0::2])
        if wrong.any():
            lines, marks, places = lines[~wrong], marks[~wrong], places[~wrong]
        if not len(lines):
            return lines, []
        # There is just as much room between values as the constant texts take. Are they there?
        for constant, mark, byte in zip(self._constants, self._from, self._from_bytes):
            wrong = block.lacking(constant, marks[:, mark] + byte)
            if wrong.any():
                lines, marks, places = lines[~wrong], marks[~wrong], places[~wrong]
        self._layout.learn(marks.take(self._to[:-1] + 1, axis=1) - marks.take(self._to[:-1], axis=1) - self._around)
        return lines, [Spans(start, end) for start, end in zip(places.T[0::2], places.T[1::2])]


def _any(wrong: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Which rows have any. Mostly none has, which is found out much faster."""
    none = np.zeros(len(wrong), bool)
    return np.any(wrong, axis=1, out=none) if wrong.any() else none


class _Outline:
    """Where one is in a line: which records and lists are open, and which fields stand where."""

    def __init__(self) -> None:
        self.fields: set[Path] = set()  # all that are in records, however deep, but not in lists
        self.records: set[Path] = set()  # those of them that hold a record
        self.twice = False  # whether a field stands twice in one record
        self._open: list[Path | None] = []  # None: a list, or something in a list
        self._at: Path | None = ()  # the field whose value comes next

    def go(self, structure: bytes) -> None:
        """On, past these brackets."""
        for char in structure:
            if char == ord("{"):
                self._open.append(self._at)
                if self._at is not None:
                    self.records.add(self._at)
            elif char == ord("["):
                self._open.append(None)
                self._at = None
            elif char in b"}]":
                self._open.pop()
                if self._open and self._open[-1] is None:
                    self._at = None

    def key(self, name: str) -> None:
        """A field begins."""
        record = self._open[-1]
        self._at = None if record is None else (*record, name)
        if self._at is not None:
            self.twice |= self._at in self.fields
            self.fields.add(self._at)

    def value(self) -> Path | None:
        """The field whose value stands here; None: in a list."""
        return self._at


def _fields(schema: pa.Schema) -> dict[Path, pa.Field]:
    """What may stand in the places of columns, and inside them; a record is made of what is inside, so in its place stands nothing."""
    found: dict[Path, pa.Field] = {}

    def add(field: pa.Field, path: Path) -> None:
        found[path] = _NOTHING if pa.types.is_struct(field.type) else field
        for inner in field.type if pa.types.is_struct(field.type) else ():
            add(inner, (*path, inner.name))

    for field in schema:
        add(field, (field.name,))
    return found


def _serves(field: pa.Field, path: Path, outline: _Outline, values: list[_Value]) -> bool:
    """Whether a field is made from one value, of a kind that is known here, or stands nowhere and may be null."""
    if path not in outline.fields:
        return bool(field.nullable)
    if path in outline.records:
        return pa.types.is_struct(field.type) and all(_serves(f, (*path, f.name), outline, values) for f in field.type)
    kinds = [value.text for value in values if value.path == path]
    if pa.types.is_struct(field.type):
        return kinds == [False] and bool(field.nullable)
    return len(kinds) == 1 and (_from_text(field.type) if kinds[0] else _from_scalar(field.type))


def _from_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _from_scalar(kind: pa.DataType) -> bool:
    numeric = pa.types.is_signed_integer(kind) or kind in (pa.float32(), pa.float64())
    return bool(numeric or pa.types.is_boolean(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"))


def _texts(block: Lines, spans: Spans) -> pa.Array:
    """Texts as an Arrow array. Places only grow: starts and ends are the offsets of an array, and each second of its texts is asked for."""
    lines = len(spans.starts)
    offsets = np.empty(2 * lines + 1, np.int32)
    offsets[0:-1:2], offsets[1:-1:2], offsets[-1] = spans.starts, spans.ends, len(block.block)
    every = pa.StringArray.from_buffers(2 * lines, pa.py_buffer(offsets), pa.py_buffer(block.block))
    return pc.take(every, pa.array(np.arange(0, 2 * lines, 2, dtype=np.int32)), boundscheck=False)


def _texts_alike(pieces: Pieces) -> pa.Array:
    """Texts of one length as an Arrow array."""
    length = pieces.itemsize
    offsets = np.arange(0, (len(pieces) + 1) * length, length, dtype=np.int32)
    return pa.StringArray.from_buffers(len(pieces), pa.py_buffer(offsets), pa.py_buffer(pieces))


def _whole(field: pa.Field | None) -> bool:
    """Whether digits alone are a value of this column; or of none, since any number is."""
    return field is None or pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)


def _valid(texts: pa.Array, field: pa.Field | None) -> npt.NDArray[np.bool_]:
    """Which of these, found outside quotes, are values of JSON and, if they are wanted, of the kind their column needs."""
    if field is _NOTHING:
        return np.asarray(pc.equal(texts, "null"))
    if field is not None and pa.types.is_boolean(field.type):
        return np.asarray(pc.is_in(texts, pa.array(_WORDS if field.nullable else _WORDS[:2])))
    # Mostly these are digits alone, which is found out ten times faster than by the pattern.
    if pc.all(pc.ascii_is_decimal(texts)).as_py():
        zero_first = pc.and_(pc.starts_with(texts, "0"), pc.greater(pc.binary_length(texts), 1))
        if not pc.any(zero_first).as_py():
            return np.ones(len(texts), bool)
    if field is None:
        return np.asarray(pc.or_(pc.match_substring_regex(texts, _NUMBER), pc.is_in(texts, pa.array(_WORDS))))
    valid = pc.match_substring_regex(texts, _NUMBER if pa.types.is_floating(field.type) else _INTEGER)
    return np.asarray(pc.or_(valid, pc.equal(texts, "null")) if field.nullable else valid)


def _array(texts: pa.Array, value: _Value, field: pa.Field) -> pa.Array:
    """The values of a column, from texts or from whole numbers, converted as the exact decoder does it."""
    if field is _NOTHING:
        return texts
    if pa.types.is_int64(texts.type):
        return texts.cast(field.type)
    if value.text:
        return texts if texts.type == field.type else texts.cast(field.type)
    if field.nullable and pc.any(null := pc.equal(texts, "null")).as_py():
        texts = pc.if_else(null, None, texts)
    if pa.types.is_boolean(field.type):
        return pc.equal(texts, "true")
    if pa.types.is_timestamp(field.type):
        return texts.cast(pa.int64()).cast(field.type)
    return read_leaf(texts, field.type)
