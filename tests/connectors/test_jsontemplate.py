"""Lines decoded by templates are what the exact decoder makes of them, and everything else is left to it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors import jsontemplates
from penstock.connectors.jsonlines import JsonLines
from penstock.connectors.jsontemplate import Template
from penstock.connectors.linemarks import Lines
from penstock.connectors.lines import _decode
from penstock.schema import to_schema

SCHEMA = to_schema("n bigint, word string, x double, yes boolean, at timestamp, day date, small int, must string not null")


def outcome(block: bytes, schema: pa.Schema, *, templates: bool, before: bytes | None = None) -> Any:
    """Rows, where each ends, and what is bad: everything a file's reader gets to know. The decoder may have seen a block before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsontemplates, "BYTES_MIN", 0 if templates else 1 << 40)
        decoder = JsonLines(schema)
        if before is not None:
            _decode(decoder, before, 0, "a.json")
        found = _decode(decoder, block, 0, "a.json")
    ends = [min(int(end), len(block)) for end in found.ends()]  # a last line may lack its line break
    return found.batch.to_pylist(), ends, found.end, found.bad, found.batch.schema


def check_same(block: bytes, schema: pa.Schema = SCHEMA) -> None:
    exact = outcome(block, schema, templates=False)
    assert outcome(block, schema, templates=True) == exact
    assert outcome(block, schema, templates=True, before=block) == exact
    first_line = block[: block.find(b"\n") + 1]
    assert outcome(block, schema, templates=True, before=first_line or block) == exact


def fitting(lines: list[str], like: str, schema: pa.Schema) -> list[int]:
    """The numbers of the lines that fit the template of another."""
    template = Template.learn(like.encode(), schema)
    assert template is not None
    block = Lines("".join(line + "\n" for line in lines).encode())
    numbers, rows = template.decode(block, block.plain())
    assert rows.num_rows == len(numbers)
    assert rows.schema == schema
    return [int(number) for number in numbers]


LIKE = '{"must":"a","n":1,"more":{"deep":["x",2]},"word":"b"}'
FIT = [
    LIKE,
    '{"must":"","n":-12,"more":{"deep":["",2.5e-3]},"word":"ü"}',
    '{"must":"{,:}","n":null,"more":{"deep":["]",true]},"word":"1"}',
    '{"must":"a","n":9223372036854775807,"more":{"deep":["x",null]},"word":"null"}',
]
UNFIT = [
    '{"must":"a", "n":1,"more":{"deep":["x",2]},"word":"b"}',  # a space more
    '{"must":"a","n":1,"more":{"deep":["x",2]},"word":"b"} ',
    ' {"must":"a","n":1,"more":{"deep":["x",2]},"word":"b"}',
    '{"must":"a","n":1,"more":{"deep":["x",02]},"word":"b"}',  # no JSON
    '{"must":"a","n":1,"more":{"deep":["x",+2]},"word":"b"}',
    '{"must":"a","n":1,"more":{"deep":["x",.5]},"word":"b"}',
    '{"must":"a","n":1,"more":{"deep":["x",]},"word":"b"}',
    '{"must":"a","n":1,"more":{"deep":["x",True]},"word":"b"}',
    '{"must":"a","n":1,"more":{"deep":["x",NaN]},"word":"b"}',
    '{"must":"a","n":1,"more":{"deep":["x",2]},"word":"b"}}',
    '{"must":"a","n":,"more":{"deep":["x",2]},"word":"b"}',
    '{"must":"a","n":-,"more":{"deep":["x",2]},"word":"b"}',
    '{"must":"a","n":0x10,"more":{"deep":["x",2]},"word":"b"}',
    '{"must":"a","n":1.0,"more":{"deep":["x",2]},"word":"b"}',  # no integer
    '{"must":"a","n":true,"more":{"deep":["x",2]},"word":"b"}',
    '{"must":"a","n":"1","more":{"deep":["x",2]},"word":"b"}',  # another kind
    '{"must":"a","n":1,"more":{"deep":["x",2]},"word":null}',
    '{"must":"a","n":1,"more":{"deep":["x",2]},"word":"b\\n"}',  # an escape
    '{"must":"a","n":1,"more":{"deep":["x",2]},"word":"b\t"}',  # a control character
    '{"must":"a","n":1,"more":{"deep":["x","y",2]},"word":"b"}',
    '{"must":"a","n":1,"more":{"peep":["x",2]},"word":"b"}',  # other names
    '{"must":"a","m":1,"more":{"deep":["x",2]},"word":"b"}',
    '{"n":1,"must":"a","more":{"deep":["x",2]},"word":"b"}',  # another order
    "",
    "{}",
]


def test_lines_that_differ_in_values_only_fit() -> None:
    schema = to_schema("n bigint, word string, must string not null")
    assert fitting(FIT, LIKE, schema) == list(range(len(FIT)))


@pytest.mark.parametrize("line", UNFIT)
def test_a_line_that_differs_in_more_does_not_fit_and_its_neighbours_do(line: str) -> None:
    schema = to_schema("n bigint, word string, must string not null")
    assert fitting([LIKE, line, LIKE], LIKE, schema) == [0, 2]


def test_quotes_that_only_add_up_do_not_fit() -> None:
    # As many quotes in all as two lines need, but not each where they belong.
    assert fitting(['{"word":"a","x":"', 'b"}'], '{"word":"a"}', to_schema("word string")) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"n":1,"n":2}',  # twice
        '{"n":{"n":1}}',  # nested where a number is wanted
        '{"n":[1]}',
        '{"n":"1"}',
        '{"more":[1,2],"n":1}',  # two numbers between quotes
        '{"x":NaN,"n":1}',
        "{}",
        "[1]",
        "no json",
        '{"n":1',
    ],
)
def test_such_lines_have_no_template(line: str) -> None:
    assert Template.learn(line.encode(), to_schema("n bigint")) is None


def test_a_column_that_may_not_be_null_must_be_there() -> None:
    assert Template.learn(b'{"word":"a"}', to_schema("word string, must string not null")) is None
    assert fitting(['{"must":1}', '{"must":null}'], '{"must":2}', to_schema("must bigint not null")) == [0]


def test_only_the_field_of_the_outermost_object_is_the_column() -> None:
    block = b'{"a":{"n":1},"n":2,"b":[{"n":3}]}\n' * 3
    rows = JsonLines(to_schema("n bigint")).many(block).to_pylist()
    assert rows == [{"n": 2}] * 3
    check_same(block, to_schema("n bigint"))


def test_a_number_too_large_is_left_to_the_exact_decoder() -> None:
    check_same(
        b'{"n":1,"must":"a"}\n' * 4 + b'{"n":9223372036854775808,"must":"a"}\n' + b'{"n":-9223372036854775808,"must":"a"}\n'
    )
    check_same(b'{"small":1,"must":"a"}\n' * 4 + b'{"small":2147483648,"must":"a"}\n')
    check_same(b'{"x":1e400,"must":"a"}\n{"x":-0.0,"must":"a"}\n{"x":12,"must":"a"}\n')


def test_lines_of_several_templates_keep_their_order() -> None:
    lines = [b'{"n":%d,"must":"a"}' % i if i % 3 else b'{"must":"%d","word":"w"}' % i for i in range(100)]
    lines[50] = b'{"must" : "\\u00e4", "n" : 7}'
    check_same(b"\n".join(lines) + b"\n")


def test_templates_are_used_and_remembered() -> None:
    decoder = JsonLines(to_schema("number bigint"))
    block = b"".join(b'{"number":%d}\n' % i for i in range(jsontemplates.BYTES_MIN // 8))
    assert decoder.many(block).column("number").to_pylist() == list(range(jsontemplates.BYTES_MIN // 8))
    (template,) = decoder._templates._known
    decoder.many(block)
    assert decoder._templates._known == [template]


def test_blocks_whose_lines_fit_nothing_are_left_alone_for_a_while() -> None:
    decoder = JsonLines(to_schema("word string"))
    decoder.many(b'{"word":"\\u00e4"}\n' * (jsontemplates.BYTES_MIN // 10))
    assert decoder._templates._without == jsontemplates.BLOCKS_WITHOUT


# Arbitrary lines, against the exact decoder.

CASUAL = st.text(st.characters(codec="utf-8"), max_size=6)
CHOSEN = st.sampled_from(
    ["", "a", '"', "\\", "\n", "\r", "{", '":"', "null", "2026-11-15T12:00:00Z", "2026-11-15T12:00:00", "2026-11-15", "é", "1"]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    CASUAL,
    CHOSEN,
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(CASUAL, inner, max_size=2), max_leaves=4
)
NAMES = st.sampled_from(["n", "word", "x", "yes", "at", "day", "small", "must", "more", "é", ""])
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)
FITTING = st.fixed_dictionaries(
    {
        "must": CASUAL,
        "n": st.integers(-5, 5) | st.none(),
        "x": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "yes": st.booleans(),
        "at": st.sampled_from(["2026-11-15T12:00:00Z", "2026-11-15T12:00:00.25+01:00", "1"]),
        "day": st.sampled_from(["2026-11-15", "x"]),
    }
)


@st.composite
def one_line(draw: st.DrawFn) -> bytes:
    value = draw(FITTING | FITTING | OBJECTS)
    separators = draw(st.sampled_from([(",", ":"), (",", ":"), (", ", ": "), (" ,", "\t:")]))
    line = json.dumps(value, separators=separators, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 5)) == 0:  # damage it
        at = draw(st.integers(0, len(line)))
        junk = draw(
            st.sampled_from([b'"', b"\\", b"{", b"}", b",", b":", b"0", b" ", b"\r", b"\x00", b"\xff", b"-", b"e", b'""', b"\n"])
        )
        line = line[:at] + junk + line[at + draw(st.integers(0, 2)) :]
    return line


@given(st.lists(one_line(), min_size=1, max_size=12), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_lines_become_what_the_exact_decoder_makes_of_them(lines: list[bytes], ending: bytes, closed: bool) -> None:
    check_same(ending.join(lines) + (ending if closed else b""))


@given(
    st.lists(
        st.binary(max_size=12) | st.sampled_from([b'{"n":', b'"must":"a"', b"}", b"\n", b"1", b","]), min_size=1, max_size=20
    )
)
@settings(max_examples=200, deadline=None)
def test_any_bytes_become_what_the_exact_decoder_makes_of_them(pieces: list[bytes]) -> None:
    block = b"".join(pieces)
    check_same(block or b"\n", to_schema("n bigint, must string"))


@given(FITTING, st.data())
@settings(max_examples=200, deadline=None)
def test_a_line_with_one_byte_changed_becomes_what_the_exact_decoder_makes_of_it(
    value: dict[str, Any], data: st.DataObject
) -> None:
    line = json.dumps(value, separators=(",", ":")).encode()
    at = data.draw(st.integers(0, len(line) - 1))
    changed = line[:at] + bytes([data.draw(st.integers(0, 255))]) + line[at + 1 :]
    check_same(b"\n".join([line, line, changed, line]) + b"\n")
