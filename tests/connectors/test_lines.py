"""Lines of JSON and CSV: exactly the bad ones are bad, wherever blocks are cut."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import sources
from penstock.connectors import jsontemplates, lines
from penstock.errors import ConfigError, StorageError

from .reading import Seen, check_resume, read

FIXTURE = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCHEMA = "n bigint not null, word string"


def json_of(folder: Path, data: bytes, schema: Any = SCHEMA, **options: Any) -> Seen:
    (folder / "a.json").write_bytes(data)
    return read(sources.files(folder / "a.json", schema=schema, splits=1), **options)


def csv_of(folder: Path, data: bytes, schema: Any = SCHEMA, *, header: bool = True) -> Seen:
    (folder / "a.csv").write_bytes(data)
    return read(sources.files(folder / "a.csv", schema=schema, splits=1, header=header))


GOOD = b'{"n": 1, "word": "x", "more": [1, {"a": 2}]}'
BAD = {
    b"not json": "not JSON",
    b'{"n": 1': "not JSON",
    b"[1]": "expected an object",
    b'{"n": "1"}': "'n' is bigint, and the value is \"1\"",
    b'{"n": 1.0}': "'n' is bigint",
    b'{"n": true}': "'n' is bigint",
    b'{"n": 9223372036854775808}': "'n' is bigint",
    b'{"word": "y"}': "'n' is not null",
    b'{"n": null}': "'n' is not null",
    b'{"n": 1, "word": 5}': "'word' is string, and the value is 5",
    b'{"n": 1}{"n": 2}': "not JSON",
    b'{"n": 1, "word": "\xff"}': "not JSON",
    b'"{" }': "not JSON",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_named_and_its_neighbours_survive(tmp_path: Path, line: bytes) -> None:
    data = b"\n".join([GOOD] * 20 + [line] + [GOOD] * 20) + b"\n"
    seen = json_of(tmp_path, data)
    assert seen.rows == [{"n": 1, "word": "x"}] * 40
    (bad,) = seen.bad
    assert bad.position == {"file": "a.json", "offset": 20 * (len(GOOD) + 1)}
    assert BAD[line] in bad.error
    assert bad.record == line.decode("utf-8", "backslashreplace")


@pytest.mark.parametrize("block", [1, 60, 150, 1 << 20])
@given(
    picks=st.lists(st.sampled_from([GOOD, b'{"n": 2}', b"", b"  ", *BAD]), max_size=14),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    closed=st.booleans(),
    mark=st.booleans(),
    rows_max=st.integers(1, 6),
)
@FIXTURE
def test_exactly_the_bad_lines_are_bad(
    tmp_path: Path, block: int, picks: list[bytes], ending: bytes, closed: bool, mark: bool, rows_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        patch.setattr(lines, "PIECE_BYTES", 2 * block)
        patch.setattr(jsontemplates, "BYTES_MIN", 100)
        data = ending.join(picks) + (ending if closed else b"")
        data = (b"\xef\xbb\xbf" if mark else b"") + data
        seen = json_of(tmp_path, data, rows_max=rows_max)
        good = {GOOD: {"n": 1, "word": "x"}, b'{"n": 2}': {"n": 2, "word": None}}
        assert seen.rows == [good[line] for line in picks if line in good]
        assert [bad.record.encode() for bad in seen.bad] == [
            line.decode("utf-8", "backslashreplace").encode() for line in picks if line in BAD
        ]
        check_resume(sources.files(tmp_path / "a.json", schema=SCHEMA, splits=1), rows_max=rows_max, again_max=3)


def test_objects_that_trade_lines_are_bad_although_the_count_is_right(tmp_path: Path) -> None:
    seen = json_of(tmp_path, b'{"n": 1}{"n": 2}\n{"n":\n3}\n{"n": 4}\n')
    assert seen.rows == [{"n": 4, "word": None}]
    assert len(seen.bad) == 3


def test_times_are_iso_text_with_a_zone_or_microseconds(tmp_path: Path) -> None:
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC)
    good: list[object] = ["2026-11-15T12:00:00Z", "2026-11-15T13:00:00+01:00", 1_794_744_000_000_000]
    bad: list[object] = ["2026-11-15T12:00:00", "noon", 1.5, True, 10**30]
    for values in (good[:2], good[2:] * 3, good, good + bad):
        data = "".join(json.dumps({"at": value}) + "\n" for value in values).encode()
        seen = json_of(tmp_path, data, "at timestamp not null")
        assert seen.rows == [{"at": noon}] * len([value for value in values if value in good])
        assert len(seen.bad) == len([value for value in values if value in bad])
    both = json_of(tmp_path, b'{"a": 0, "b": "1970-01-01T00:00:00Z"}\n', "a timestamp, b timestamp")
    assert both.rows == [{"a": datetime(1970, 1, 1, tzinfo=UTC), "b": datetime(1970, 1, 1, tzinfo=UTC)}]


def test_dates_decimals_and_nested_values_are_read(tmp_path: Path) -> None:
    data = b'{"d": "2026-11-15", "m": "1.50", "l": [1, 2], "s": {"x": "a"}}\n{"m": 12345678901234567.25, "s": {}}\n'
    seen = json_of(tmp_path, data, "d date, m decimal(20,2), l array<bigint>, s struct<x: string not null>")
    assert seen.rows == [{"d": date(2026, 11, 15), "m": Decimal("1.50"), "l": [1, 2], "s": {"x": "a"}}]
    assert "'s.x' is not null" in seen.bad[0].error


def test_an_object_can_be_a_map(tmp_path: Path) -> None:
    data = b'{"m": {"a": 1, "b": null, "a": 2}}\n{"m": {"c": "x"}}\n{"m": [["a", 1]]}\n{}\n'
    seen = json_of(tmp_path, data, "m map<string, bigint>")
    assert seen.rows == [{"m": [("a", 2), ("b", None)]}, {"m": None}]
    assert ["'m[]' is bigint" in seen.bad[0].error, "'m' is map" in seen.bad[1].error] == [True, True]
    with pytest.raises(ConfigError, match="keys in JSON are text, not int64"):
        json_of(tmp_path, b'{"m": {}}\n', "m map<bigint, string>")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "-NaN", "Inf", "1e400", "-1e400", '"nan"', '"1.5"', "1" * 400])
def test_what_is_no_finite_number_is_a_bad_record(tmp_path: Path, text: str) -> None:
    lines = [f'{{"x": {value}, "y": "{value}"}}\n' for value in ("1.5", "2")]
    bad = f'{{"x": {text}, "y": ""}}\n'
    for data in (bad, "".join([*lines, bad, *lines]), "".join(lines * 900 + [bad] + lines * 900)):
        seen = json_of(tmp_path, data.encode(), "x double, y string")
        assert [found.record for found in seen.bad] == [bad.rstrip()]
        assert len(seen.rows) == data.count("\n") - 1
        assert {row["x"] for row in seen.rows} <= {1.5, 2.0}


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_word_that_is_no_number_is_bad_also_where_nobody_looks(tmp_path: Path, word: str) -> None:
    text = f'"x {word}, y": ":{word}"'
    data = "".join(f'{{"n": 1, {text}, "more": {value}}}\n' for value in ("0", word, "1e400"))
    seen = json_of(tmp_path, data.encode(), "n bigint")
    assert seen.rows == [{"n": 1}, {"n": 1}]
    assert [found.error for found in seen.bad] == [f"not JSON: {word} is no number"]


def test_the_texts_that_spark_writes_for_numbers_that_are_none_are_read(tmp_path: Path) -> None:
    data = b'{"x": "NaN"}\n{"x": 1}\n{"x": "Infinity"}\n{"x": "-Infinity"}\n'
    assert str(json_of(tmp_path, data, "x double").rows) == "[{'x': nan}, {'x': 1.0}, {'x': inf}, {'x': -inf}]"


@pytest.mark.parametrize("text", ["\\ud800", "\\uDC00", "a\\ud83dx", "\\ude00\\ud83d"])
def test_half_of_a_character_makes_a_bad_record(tmp_path: Path, text: str) -> None:
    lines = [f'{{"n": 1, "word": "{text}"}}', f'{{"n": 1, "more": ["{text}"]}}', f'{{"n": 1, "{text}": 1}}']
    seen = json_of(tmp_path, "".join(f'{line}\n{{"n": 2, "word": "\\ud83d\\ude00"}}\n' for line in lines).encode())
    assert seen.rows == [{"n": 2, "word": "😀"}] * 3
    assert [found.record for found in seen.bad] == lines
    assert all(found.error.startswith("not Unicode: \\u") for found in seen.bad)


def test_the_rows_of_several_blocks_come_as_one_batch_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 3 * len(GOOD) + 3)  # three lines
    monkeypatch.setattr(lines, "PIECE_BYTES", 2 * lines.BLOCK_BYTES)
    seen = json_of(tmp_path, (GOOD + b"\n") * 20)
    assert seen.rows_before == [6, 12, 18, 20, 20]
    assert json_of(tmp_path, (GOOD + b"\n") * 20, rows_max=4).rows_before == [4, 8, 12, 16, 20, 20]


def test_many_blank_lines_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 10)
    monkeypatch.setattr(lines, "PIECE_BYTES", 20)
    (tmp_path / "a.json").write_bytes(b"\n" * 100 + GOOD + b"\n")
    source = sources.files(tmp_path / "a.json", schema=SCHEMA, splits=1, watch="1h")
    assert read(source).rows == [{"n": 1, "word": "x"}]


def test_of_columns_that_are_not_used_only_the_shape_of_their_line_is_checked(tmp_path: Path) -> None:
    data = b'{"n": 1, "word": 5}\n{"n": 2, "word": }\n{"n": 3, "word": "\\x"}\n{"n": 4, "word": "x"\n{"n": 5}\n'
    seen = json_of(tmp_path, data, "n bigint not null, word string not null", columns=("n",))
    assert seen.rows == [{"n": 1}, {"n": 5}]
    assert len(seen.bad) == 3
    (tmp_path / "a.csv").write_bytes(b"n,x\n1,one\n2\n3,\n")
    seen = read(sources.files(tmp_path / "a.csv", schema="n bigint, x double not null", splits=1), columns=("n",))
    assert seen.rows == [{"n": 1}, {"n": 3}]
    assert len(seen.bad) == 1


def test_of_a_field_that_stands_twice_the_last_counts(tmp_path: Path) -> None:
    assert json_of(tmp_path, b'{"n": 1, "n": 2}\n').rows == [{"n": 2, "word": None}]


def test_a_line_beyond_all_bounds_is_one_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 50)
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1_000)
    long = b'{"word": "' + b"x" * 5_000 + b'"}'
    for data in (GOOD + b"\n" + long + b"\n" + GOOD + b"\n", GOOD + b"\n" + long):
        seen = json_of(tmp_path, data)
        assert len(seen.rows) == 1 + data.endswith(GOOD + b"\n")
        assert [bad.error for bad in seen.bad] == ["the line has more than 1000 bytes"]
        assert len(seen.bad[0].record) == 1_000
        check_resume(sources.files(tmp_path / "a.json", schema=SCHEMA, splits=1), rows_max=1, again_max=2)


CSV_GOOD = b'1,"x, y"'
CSV_BAD = {
    b"one,x": "'n': CSV conversion error to int64: invalid value 'one'",
    b"1": "Expected 2 columns, got 1",
    b"1,2,3": "Expected 2 columns, got 3",
    b",x": "'n' is not null",
    b'1,"open': "a quote is not closed",
    b"1,\xff": "invalid UTF8",
    b"1,a\rb": "carriage return",
}


@pytest.mark.parametrize("line", CSV_BAD)
def test_a_bad_csv_line_is_named_and_its_neighbours_survive(tmp_path: Path, line: bytes) -> None:
    for after in (20, 0):
        data = b"\n".join([b"n,word"] + [CSV_GOOD] * 20 + [line] + [CSV_GOOD] * after) + b"\n"
        seen = csv_of(tmp_path, data)
        assert seen.rows == [{"n": 1, "word": "x, y"}] * (20 + after)
        (bad,) = seen.bad
        assert bad.position == {"file": "a.csv", "offset": 7 + 20 * (len(CSV_GOOD) + 1)}
        assert CSV_BAD[line] in bad.error


@pytest.mark.parametrize("block", [1, 20, 1 << 20])
@given(
    picks=st.lists(st.sampled_from([CSV_GOOD, b"2,", b"", *CSV_BAD]), max_size=14),
    ending=st.sampled_from([b"\n", b"\r\n"]),
    closed=st.booleans(),
    mark=st.booleans(),
    rows_max=st.integers(1, 6),
)
@FIXTURE
def test_exactly_the_bad_csv_lines_are_bad(
    tmp_path: Path, block: int, picks: list[bytes], ending: bytes, closed: bool, mark: bool, rows_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", block)
        data = ending.join([b"n,word", *picks]) + (ending if closed else b"")
        seen = csv_of(tmp_path, (b"\xef\xbb\xbf" if mark else b"") + data)
        good = {CSV_GOOD: {"n": 1, "word": "x, y"}, b"2,": {"n": 2, "word": None}}
        assert seen.rows == [good[line] for line in picks if line in good]
        assert len(seen.bad) == len([line for line in picks if line in CSV_BAD])
        check_resume(sources.files(tmp_path / "a.csv", schema=SCHEMA, splits=1), rows_max=rows_max, again_max=3)


def test_csv_columns_are_found_by_name(tmp_path: Path) -> None:
    assert csv_of(tmp_path, b"word,other,n\nx,y,1\n").rows == [{"n": 1, "word": "x"}]
    assert csv_of(tmp_path, b"1,x\n", header=False).rows == [{"n": 1, "word": "x"}]
    assert csv_of(tmp_path, b"").rows == []
    assert csv_of(tmp_path, b"n,word").rows == []
    with pytest.raises(StorageError, match=r"no column 'word'\. Its header: n, wrod"):
        csv_of(tmp_path, b"n,wrod\n1,x\n")


def test_nothing_between_commas_is_null_or_empty_text(tmp_path: Path) -> None:
    seen = csv_of(tmp_path, b'a,b,c\n,,\n"","",1.5\n', "a string, b string not null, c double")
    assert seen.rows == [{"a": None, "b": "", "c": None}, {"a": "", "b": "", "c": 1.5}]
