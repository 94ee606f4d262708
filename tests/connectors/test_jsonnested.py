"""JSON with records, lists and maps inside: a block at once and each line alone give the same rows and the same bad records."""

from __future__ import annotations

import json
import random
import string
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors import jsontemplates
from penstock.connectors.jsonlines import JsonLines
from penstock.connectors.lines import _decode
from penstock.schema import to_schema

LEAVES = [
    pa.int64(),
    pa.int8(),
    pa.float64(),
    pa.float32(),
    pa.string(),
    pa.bool_(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
    pa.date32(),
    pa.decimal128(6, 2),
]
NAMES = st.sampled_from(["a", "b", "c"])


def types(*, maps: bool) -> st.SearchStrategy[pa.DataType]:
    def inside(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
        def fields(names: list[str]) -> st.SearchStrategy[pa.DataType]:
            return st.tuples(*(field(name, kinds) for name in names)).map(lambda made: pa.struct(list(made)))

        structs = st.lists(NAMES, min_size=1, max_size=3, unique=True).flatmap(fields)
        lists = field("item", kinds).map(pa.list_)
        return structs | lists | field("value", kinds).map(lambda item: pa.map_(pa.string(), item)) if maps else structs | lists

    return st.recursive(st.sampled_from(LEAVES), inside, max_leaves=5)


def field(name: str, kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.Field]:
    return st.builds(lambda kind, nullable: pa.field(name, kind, nullable=nullable), kinds, st.booleans())


def schemas(*, maps: bool) -> st.SearchStrategy[pa.Schema]:
    def columns(names: list[str]) -> st.SearchStrategy[pa.Schema]:
        return st.tuples(*(field(name, types(maps=maps)) for name in names)).map(lambda made: pa.schema(list(made)))

    return st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3, unique=True).flatmap(columns)


ODD = st.sampled_from(
    [
        *[
            "null",
            "1",
            "1.5",
            "-0",
            "1e400",
            "-1e39",
            "300",
            '"x"',
            '""',
            "true",
            "{}",
            "[]",
            "[null]",
            '{"a":null}',
            "tru",
            "01",
        ],
        *[
            "NaN",
            "-Infinity",
            "Infinity",
            '"NaN"',
            '"-Infinity"',
            '" NaN, "',
            '"\\ud800"',
            '"\\ud83d\\ude00"',
            '"ü"',
            '"\\u0061"',
        ],
        *["12345.678", "12345", '"1.25"', "1794744000000000", '"2026-11-18"', '"2026-11-18T00:00:00"'],
        *[
            '{"a":1,"a":2}',
            '[{"a":1}]',
            '{"k":null}',
            '{"k":{"a":[1]}}',
            "[[1],[]]",
            '[{"k":"a","v":1}]',
            '{"key":"a","value":1}',
        ],
    ]
)
GOOD: dict[str, st.SearchStrategy[str]] = {
    "int64": st.integers(-(2**63), 2**63 - 1).map(str),
    "int8": st.integers(-128, 127).map(str),
    "double": st.floats(allow_nan=False, allow_infinity=False).map(json.dumps) | st.sampled_from(['"NaN"', '"Infinity"']),
    "float": st.floats(-1e30, 1e30).map(json.dumps),
    "string": st.text(string.printable + "ü€😀\\", max_size=6).flatmap(
        lambda text: st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False)])
    ),
    "bool": st.sampled_from(["true", "false"]),
    "timestamp[us, tz=UTC]": st.sampled_from(['"2026-11-18T01:02:03.5Z"', "1794744000000000", '"2026-11-18T00:00:00+01:00"']),
    "timestamp[us]": st.sampled_from(['"2026-11-18T01:02:03"', "1794744000000000"]),
    "date32[day]": st.just('"2026-11-18"'),
    "decimal128(6, 2)": st.sampled_from(["1.25", '"-1234.5"', "7", "1e2"]),
}


@st.composite
def value(draw: st.DrawFn, column: pa.Field) -> str:
    """JSON for a field: mostly what fits, sometimes null, seldom anything."""
    chance = draw(st.integers(0, 59))
    if chance == 0:
        return draw(ODD)
    if chance < 8 and (column.nullable or chance == 1):
        return "null"
    kind = column.type
    if pa.types.is_struct(kind):
        return draw(record(list(kind)))
    if pa.types.is_list(kind):
        return "[" + ",".join(draw(st.lists(value(kind.value_field), max_size=3))) + "]"
    if pa.types.is_map(kind):
        keys = draw(st.lists(st.sampled_from(['"a"', '"k"', '"v"', '"\\u0061"', '"ü"', '"x,{:}"', '"\\""']), max_size=3))
        return "{" + ",".join(f"{key}:{draw(value(kind.item_field))}" for key in keys) + "}"
    return draw(GOOD[str(kind)])


SPACE = st.sampled_from(["", "", "", " "])


@st.composite
def record(draw: st.DrawFn, columns: list[pa.Field]) -> str:
    """An object with these fields: some may be missing, some be more, some stand twice."""
    parts = [
        f'{draw(SPACE)}"{column.name}"{draw(SPACE)}:{draw(SPACE)}{draw(value(column))}'
        for column in columns
        if draw(st.integers(0, 9)) > (3 if column.nullable else 0)
    ]
    if draw(st.integers(0, 9)) == 0:
        parts.append(f'"more":{draw(ODD)}')
    if draw(st.integers(0, 49)) == 0 and parts:
        parts.append(parts[0])
    return "{" + ",".join(parts) + draw(SPACE) + "}"


def outcome(lines: list[bytes], schema: pa.Schema, *, templates: bool = False) -> Any:
    """All that a reader gets to know: rows, and the lines that are bad."""
    block = b"".join(line + b"\n" for line in lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontemplates, "BYTES_MIN", 0 if templates else 1 << 40)
        found = _decode(JsonLines(schema), block, 0, "a.json") if block else None
    if found is None:
        return [], []
    found.batch.validate(full=True)
    assert found.batch.schema == schema
    for column in found.batch.columns:
        column.cast(column.type)  # Arrow refuses nulls where none may be, seen or not
    return list(map(repr, found.batch.to_pylist())), [(bad.record, bad.error) for _, bad in found.bad]


def alone(lines: list[bytes], schema: pa.Schema) -> Any:
    """Each line by the decoder of single lines, which the block decoder has no part in."""
    rows, faults = JsonLines(schema).apart(lines)
    rows.validate(full=True)
    return list(map(repr, rows.to_pylist())), [
        (line.decode("utf-8", "backslashreplace"), faults[number]) for number, line in enumerate(lines) if number in faults
    ]


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_block_is_decoded_as_its_lines_are_one_by_one(data: st.DataObject) -> None:
    schema = data.draw(schemas(maps=data.draw(st.booleans())))
    lines = [line.encode() for line in data.draw(st.lists(record(list(schema)), min_size=1, max_size=6))]
    one_by_one = [alone([line], schema) for line in lines]
    expected = [row for rows, _ in one_by_one for row in rows], [bad for _, several in one_by_one for bad in several]
    assert alone(lines, schema) == expected
    assert outcome(lines, schema) == expected
    assert outcome(lines * 40, schema) == (expected[0] * 40, expected[1] * 40)
    assert outcome(lines, schema, templates=True) == expected
    for line, (rows, _) in zip(lines, one_by_one):  # among lines like it, which a template may fit
        assert outcome([line] * 3, schema, templates=True)[0] == rows * 3


MAPS = pa.schema(
    [
        ("n", pa.int64()),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("s", pa.struct([("m", pa.map_(pa.string(), pa.map_(pa.string(), pa.string()))), ("l", pa.list_(pa.string()))])),
        ("l", pa.list_(pa.map_(pa.string(), pa.struct([("m", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])))),
    ]
)
WITH_MAPS = (
    '{"n":1,"m":{"a":1,"b":null},"s":{"m":{"x":{"y":"z"},"w":{}},"l":["k"]},'
    '"l":[{"p":{"m":5,"at":"2026-11-18T00:00:00Z"}},{},null]}'
)


def test_maps_are_read_a_block_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = JsonLines(MAPS)
    monkeypatch.setattr(decoder, "apart", None)  # no line is looked at alone
    batch = decoder.many(f'{WITH_MAPS}\n{{"n":2}}\n{{"n":3,"m":{{ }},"s":{{"m":{{"\\"{{":{{"}}":":,"}}}}}}}}\n'.encode())
    p = {"m": 5, "at": datetime(2026, 11, 18, tzinfo=UTC)}
    assert batch.to_pylist() == [
        {
            "n": 1,
            "m": [("a", 1), ("b", None)],
            "s": {"m": [("x", [("y", "z")]), ("w", [])], "l": ["k"]},
            "l": [[("p", p)], [], None],
        },
        {"n": 2, "m": None, "s": None, "l": None},
        {"n": 3, "m": [], "s": {"m": [('"{', [("}", ":,")])], "l": None}, "l": None},
    ]


DAMAGE = ["", *'"{}[]:,\\ ', "{}", '"k":', '"v":1', '{"k":"a","v":1}', "[", "null", "1", '"m":{', ',"a":2', "},{", "}]"]


def test_what_becomes_of_maps_makes_no_good_line_of_a_damaged_one() -> None:
    """A character or two are replaced, left out or put in: a block at once says of each line what its own decoder says."""
    choose = random.Random(1)
    good = 0
    for _ in range(4_000):
        line = WITH_MAPS
        for _ in range(choose.choice([1, 1, 2])):
            at = choose.randrange(len(line))
            line = (line[:at] + choose.choice(DAMAGE) + line[at + choose.choice([0, 1, 1, 4]) :]).strip()
        found = outcome([line.encode()], MAPS)
        assert found == alone([line.encode()], MAPS), line
        good += len(found[0])
    assert 100 < good < 3_900, "some damage leaves a good line"


@dataclass
class Bid:
    auction: int
    tags: list[str]


@dataclass
class Event:
    kind: int
    bid: Bid | None
    bids: list[Bid]
    at: datetime | None = None


def test_a_record_that_may_be_none_is_read_a_block_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = JsonLines(to_schema(Event))
    monkeypatch.setattr(decoder, "apart", None)  # no line is looked at alone
    batch = decoder.many(
        b'{"kind":1,"bid":{"auction":7,"tags":["a","b"]},"bids":[]}\n'
        b'{"kind":2,"bid":null,"bids":[{"auction":1,"tags":[]}],"at":"2026-11-18T00:00:00Z"}\n'
        b'{"kind":3,"bids":[]}\n'
    )
    assert batch.to_pylist() == [
        {"kind": 1, "bid": {"auction": 7, "tags": ["a", "b"]}, "bids": [], "at": None},
        {"kind": 2, "bid": None, "bids": [{"auction": 1, "tags": []}], "at": datetime(2026, 11, 18, tzinfo=UTC)},
        {"kind": 3, "bid": None, "bids": [], "at": None},
    ]
    assert batch.cast(batch.schema) == batch


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b'{"kind":1,"bid":{"tags":[]},"bids":[]}', "column 'bid.auction' is not null, and there is no value for it"),
        (b'{"kind":1,"bids":[null]}', "column 'bids[]' is not null, and there is no value for it"),
        (b'{"kind":1,"bids":[{"auction":1,"tags":["a",null]}]}', "column 'bids[].tags[]' is not null"),
        (b'{"kind":1,"bids":[{"auction":"1","tags":[]}]}', "column 'bids[].auction' is bigint, and the value is \"1\""),
        (
            b'{"kind":1,"bid":3,"bids":[]}',
            "column 'bid' is struct<auction: bigint not null, tags: array<string not null> not null>",
        ),
    ],
)
def test_the_place_inside_a_record_that_does_not_fit_is_named(line: bytes, error: str) -> None:
    good = b'{"kind":1,"bids":[]}'
    rows, bad = outcome([good] * 100 + [line] + [good] * 100, to_schema(Event))
    assert len(rows) == 200
    assert [record for record, _ in bad] == [line.decode()]
    assert error in bad[0][1]
