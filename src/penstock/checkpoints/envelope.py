"""Records as bytes that cannot be mistaken: canonical JSON behind a line that gives its length and checksum.

A file that was cut short, or in which one bit has flipped, must be refused; so must one from a future we
cannot read. An example (the second line is one line in the file)::

    {"format":"penstock","length":231,"sha256":"5e1f…"}
    {"body":{…},"format_version":1,"kind":"checkpoint","min_reader_version":1,"previous":"9a0c…",…,"term":7}

1. **Canonical**: keys sorted, no spaces, ASCII, integers only. Equal values are equal bytes, so bytes can be
   compared. A fraction is refused when written (1e22 and 10000000000000000000000 are the same number with
   different digits; checksums do not like that).
2. The first line is rebuilt from the second and must be equal to the byte; it has no field that could differ
   unnoticed.
3. `min_reader_version` above ours: refused, with both numbers. `requires` names features a reader must know;
   one unknown name: refused. `format_version` above ours alone is read, and fields we do not know are passed
   over; in our own version they are an error.
4. `decode` raises CorruptError naming the file, for any bytes whatever, and nothing else.

Order of writes: the envelope is complete in memory before the store sees it, and the store shows all of it or
nothing (`storage`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from penstock.errors import ConfigError, CorruptError, Fix

__all__ = [
    "FEATURES",
    "FORMAT_VERSION",
    "INTEGER_MAX",
    "INTEGER_MIN",
    "UNALIGNED",
    "Envelope",
    "Fields",
    "Json",
    "canonical",
    "checksum",
    "seal",
    "unseal",
]

FORMAT_VERSION = 1
UNALIGNED = "unaligned"  # a checkpoint with rows in flight
FEATURES: frozenset[str] = frozenset([UNALIGNED])  # what a file may require of us
SIZE_BYTES_MAX = 1 << 28  # far above any manifest; bounds what a planted file makes us read into memory
INTEGER_MIN, INTEGER_MAX = -(1 << 63), (1 << 63) - 1

LATER = Fix("record.later-version", "Use the version of Penstock that wrote it, or a later one")

Json: TypeAlias = Any  # None, bool, int, str, list and dict of these


def canonical(value: Json, what: str = "value") -> bytes:
    """The one encoding of a JSON value.

    Tuples become lists; ConfigError names the place of anything JSON or we cannot keep exactly.
    """
    try:
        plain = value if _is_plain(value) else _plain(value, what)
        return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply to be stored") from None


def _is_plain(value: Json) -> bool:
    """Whether it can be encoded as it is; for what a driver does each second, several times as fast as to make it so."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return True
    if kind is int:
        return bool(INTEGER_MIN <= value <= INTEGER_MAX)
    if kind is list or kind is tuple:
        return all(map(_is_plain, value))
    return kind is dict and all(type(key) is str for key in value) and all(map(_is_plain, value.values()))


def _plain(value: Json, where: str) -> Json:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise ConfigError(
                f"{where} is {value}, and stored integers have 64 bits", fix=Fix("stored.integer", "Store it as text")
            )
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where} has the key {key!r}, and keys of stored objects are text")
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    raise ConfigError(
        f"{where} is {value!r} ({type(value).__name__}), and only None, bool, int, str, list and dict can be stored",
        fix=Fix("stored.value", "Store it as text, or a fraction as a whole number of a smaller unit"),
    )


def checksum(data: bytes) -> str:
    """SHA-256 as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a sealed file holds. `lenient`: written by a later version, so unknown fields are passed over."""

    kind: str
    seq: int
    term: int
    previous: str
    body: Json
    lenient: bool = False


def seal(envelope: Envelope, requires: tuple[str, ...] = ()) -> bytes:
    """The bytes of a file."""
    payload = canonical(
        {
            "body": envelope.body,
            "format_version": FORMAT_VERSION,
            "kind": envelope.kind,
            "min_reader_version": 1,
            "previous": envelope.previous,
            "requires": sorted(requires),
            "seq": envelope.seq,
            "term": envelope.term,
        },
        envelope.kind,
    )
    return _first_line(payload) + payload


def unseal(data: bytes, path: str) -> Envelope:
    """The content of a file, or CorruptError naming `path`."""
    if len(data) > SIZE_BYTES_MAX:
        raise CorruptError(f"{path}: {len(data)} bytes, and no record has more than {SIZE_BYTES_MAX}")
    line, newline, payload = data.partition(b"\n")
    if not newline or not line.startswith(b'{"format":"penstock",'):
        raise CorruptError(f"{path}: not a Penstock record, or cut short in its first line ({len(data)} bytes)")
    if data != (expected := _first_line(payload)) + payload:
        raise CorruptError(
            f"{path}: altered or cut short: its first line says {_printable(line)}, its content of "
            f"{len(payload)} bytes "
            f"needs {_printable(expected[:-1])}"
        )
    fields = Fields(_parse(payload, path), "record", path)
    version = fields.integer("format_version", 1)
    reader = fields.integer("min_reader_version", 1)
    if reader > FORMAT_VERSION:
        raise CorruptError(
            f"{path}: written in format {version}, which needs a reader of format {reader}; this Penstock reads {FORMAT_VERSION}",
            fix=LATER,
        )
    requires = [fields.as_text(item, where) for item, where in fields.items("requires")]
    unknown = sorted(set(requires) - FEATURES)
    if unknown:
        raise CorruptError(f"{path}: needs {', '.join(unknown)}, which this Penstock does not know", fix=LATER)
    fields.lenient = version > FORMAT_VERSION
    envelope = Envelope(
        kind=fields.text("kind"),
        seq=fields.integer("seq", 0),
        term=fields.integer("term", 0),
        previous=fields.text("previous", empty=True),
        body=fields.json("body"),
        lenient=fields.lenient,
    )
    fields.done()
    return envelope


class Fields:
    """One JSON object being read: fields are asked for by type; `done` refuses what nobody asked for."""

    def __init__(self, value: Json, where: str, path: str, *, lenient: bool = False) -> None:
        self.where, self.path, self.lenient = where, path, lenient
        if type(value) is not dict:
            self.refuse(f"{where} is {_kind(value)}, expected an object")
        self.value: dict[str, Json] = value
        self.left = dict.fromkeys(value)

    def refuse(self, message: str) -> NoReturn:
        raise CorruptError(f"{self.path}: {message}")

    def json(self, name: str) -> Json:
        if name not in self.value:
            self.refuse(f"{self.where}.{name} is missing")
        self.left.pop(name, None)
        return self.value[name]

    def text(self, name: str, *, empty: bool = False) -> str:
        return self.as_text(self.json(name), f"{self.where}.{name}", empty=empty)

    def integer(self, name: str, low: int = INTEGER_MIN, high: int = INTEGER_MAX) -> int:
        return self.as_integer(self.json(name), f"{self.where}.{name}", low, high)

    def optional(self, name: str, low: int = INTEGER_MIN, high: int = INTEGER_MAX) -> int | None:
        value = self.json(name)
        return None if value is None else self.as_integer(value, f"{self.where}.{name}", low, high)

    def flag(self, name: str) -> bool:
        return self.as_flag(self.json(name), f"{self.where}.{name}")

    def one_of(self, name: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in allowed:
            self.refuse(f"{self.where}.{name} is {value[:80]!r}, expected one of {', '.join(allowed)}")
        return value

    def items(self, name: str) -> list[tuple[Json, str]]:
        """The items of a list, each with its place for messages."""
        return self.as_items(self.json(name), f"{self.where}.{name}")

    def object(self, name: str) -> dict[str, Json]:
        value = self.json(name)
        if type(value) is not dict:
            self.refuse(f"{self.where}.{name} is {_kind(value)}, expected an object")
        return value

    def inner(self, value: Json, where: str) -> Fields:
        return Fields(value, where, self.path, lenient=self.lenient)

    def as_items(self, value: Json, where: str, length: int | None = None) -> list[tuple[Json, str]]:
        if type(value) is not list:
            self.refuse(f"{where} is {_kind(value)}, expected a list")
        if length is not None and len(value) != length:
            self.refuse(f"{where} has {len(value)} items, expected {length}")
        return [(item, f"{where}[{index}]") for index, item in enumerate(value)]

    def as_text(self, value: Json, where: str, *, empty: bool = False) -> str:
        if type(value) is not str:
            self.refuse(f"{where} is {_kind(value)}, expected text")
        if not value and not empty:
            self.refuse(f"{where} is empty")
        return value

    def as_integer(self, value: Json, where: str, low: int = INTEGER_MIN, high: int = INTEGER_MAX) -> int:
        if type(value) is not int:  # a bool is an int to isinstance, not here
            self.refuse(f"{where} is {_kind(value)}, expected an integer")
        if not low <= value <= high:
            self.refuse(f"{where} is {value}, expected {low} to {high}")
        return value

    def as_flag(self, value: Json, where: str) -> bool:
        if type(value) is not bool:
            self.refuse(f"{where} is {_kind(value)}, expected true or false")
        return value

    def done(self) -> None:
        if self.left and not self.lenient:
            self.refuse(f"{self.where} has an unknown field {next(iter(self.left))[:80]!r}")


def _first_line(payload: bytes) -> bytes:
    return b'{"format":"penstock","length":%d,"sha256":"%s"}\n' % (len(payload), checksum(payload).encode())


def _parse(payload: bytes, path: str) -> Json:
    try:
        return json.loads(
            payload.decode("ascii"),
            parse_float=_no_fraction,
            parse_constant=_no_fraction,
            parse_int=_integer,
            object_pairs_hook=_no_duplicates,
        )
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path}: its content is not canonical JSON: {error}") from None


def _no_fraction(text: str) -> NoReturn:
    raise ValueError(f"the number {text[:40]}")


def _integer(text: str) -> int:
    if len(text) > 20:  # "-9223372036854775808" has 20
        raise ValueError(f"an integer of {len(text)} digits")
    if not INTEGER_MIN <= (value := int(text)) <= INTEGER_MAX:
        raise ValueError(f"the integer {text} has more than 64 bits")
    return value


def _no_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has the same key twice")
    return found


def _kind(value: Json) -> str:
    return {dict: "an object", list: "a list", str: "text", bool: "a flag", type(None): "null"}.get(type(value), "an integer")


def _printable(line: bytes) -> str:
    return ascii(line[:200].decode("ascii", "replace"))
