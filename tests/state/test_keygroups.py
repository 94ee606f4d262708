"""Keys: canonical types, Spark's hash, groups and their owners. Run as a script to write the golden file anew."""

from __future__ import annotations

import datetime
import decimal
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PlanError, RowError
from penstock.state import keygroups, xxh64
from penstock.state.keygroups import (
    HASH_ID,
    canonical_keys,
    canonical_type,
    group_range,
    groups_of,
    hash_keys,
    owner,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "keys.json"
ARROW = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(18,0)": pa.decimal128(18, 0),
    "decimal(38,4)": pa.decimal128(38, 4),
}
# Values as they stand in JSON: binary in hex, dates in days, timestamps in µs, decimals as text.
SAMPLES: dict[str, list[Any]] = {
    "bool": [True, False, None],
    "int64": [0, 1, 7, -1, -9, 2**63 - 1, -(2**63), None],
    "string": [
        "", "a", "ad-1", "héé", "漢字", "12345678", "123456789abc", "x" * 31, "x" * 32, "user-" + "0123456789" * 8, None,
    ],
    "binary": ["", "00", "ff80", "00112233445566778899aabbccddeeff" * 3, None],
    "date32": [0, 20_000, -1, -719_162, None],
    "timestamp": [0, 1_700_000_000_000_000, -1, -62_135_596_800_000_000, None],
    "decimal(9,2)": ["0.00", "12.34", "-12.34", "9999999.99", None],
    "decimal(18,0)": ["999999999999999999", "-999999999999999999", "-1"],
    "decimal(38,4)": [
        "0.0000", "0.0001", "-0.0001", "0.0127", "0.0128", "-0.0128", "-0.0129",
        "9999999999999999999999999999999999.9999", "-9999999999999999999999999999999999.9999", None,
    ],
}  # fmt: skip
SEVERAL = [
    (("string", "int64"), ("ad-1", 7)),
    (("int64", "string"), (7, "ad-1")),
    (("string", "int64"), (None, 7)),
    (("string", "int64"), ("ad-1", None)),
    (("string", "int64"), (None, None)),
    (("bool", "date32", "timestamp", "binary"), (True, 20_000, -1, "ff80")),
    (("decimal(38,4)", "string", "decimal(9,2)"), ("-0.0129", "y" * 40, "12.34")),
]


@pytest.fixture(autouse=True, scope="module", params=[0, 32], ids=["many", "few"])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything both ways: in numpy steps, and one by one as few strings are hashed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xxh64, "_FEW", request.param)
        yield


def bytes_of(type: str, value: Any) -> bytes:
    """What Spark feeds XXH64, from first principles."""
    if type == "bool":
        return struct.pack("<i", int(value))
    if type == "date32":
        return struct.pack("<i", value)
    if type in ("int64", "timestamp"):
        return struct.pack("<q", value)
    if type == "string":
        return str(value).encode()
    if type == "binary":
        return bytes.fromhex(value)
    unscaled = int(value.replace(".", ""))
    if not type.startswith("decimal(38"):
        return struct.pack("<q", unscaled)
    length = 1
    while not -(1 << (8 * length - 1)) <= unscaled < 1 << (8 * length - 1):
        length += 1
    return unscaled.to_bytes(length, "big", signed=True)


def vector(types: tuple[str, ...], key: tuple[Any, ...]) -> dict[str, Any]:
    h = 42
    for type, value in zip(types, key):
        if value is not None:
            h = xxhash.xxh64_intdigest(bytes_of(type, value), h)
    signed = h - (1 << 64) if h >= 1 << 63 else h
    return {"types": list(types), "key": list(key), "hash": signed, "group_of_128": signed % 128}


def vectors() -> dict[str, Any]:
    single = [vector((type,), (value,)) for type, values in SAMPLES.items() for value in values]
    return {"hash_id": HASH_ID, "vectors": single + [vector(types, key) for types, key in SEVERAL]}


def array(type: str, values: list[Any]) -> pa.Array:
    if type == "binary":
        values = [None if value is None else bytes.fromhex(value) for value in values]
    if type.startswith("decimal"):
        values = [None if value is None else decimal.Decimal(value) for value in values]
    return pa.array(values, ARROW[type])


def keys(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), [f"k{i}" for i in range(len(columns))])


def signed(hashes: np.ndarray) -> list[int]:
    return hashes.view(np.int64).tolist()


def test_the_golden_file_is_what_first_principles_say() -> None:
    assert json.loads(GOLDEN.read_text()) == vectors()


@pytest.mark.parametrize("entry", json.loads(GOLDEN.read_text())["vectors"] if GOLDEN.exists() else [], ids=str)
def test_hash_and_group_of_every_golden_key(entry: dict[str, Any]) -> None:
    batch = keys(*(array(type, [value]) for type, value in zip(entry["types"], entry["key"])))
    hashes = hash_keys(batch)
    assert signed(hashes) == [entry["hash"]]
    assert groups_of(hashes, 128).tolist() == [entry["group_of_128"]]


@pytest.mark.parametrize("few", [-1, 32])
@pytest.mark.parametrize("type", sorted(SAMPLES))
def test_a_whole_column_and_a_slice_of_it_hash_alike(type: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keygroups, "_FEW", few)
    values = SAMPLES[type] * 3
    wanted = [vector((type,), (value,))["hash"] for value in values]
    batch = keys(array(type, values))
    assert signed(hash_keys(batch)) == wanted
    assert signed(hash_keys(batch.slice(3, 5))) == wanted[3:8]
    assert signed(hash_keys(batch.slice(2, 0))) == []


@pytest.mark.parametrize("few", [-1, 32])
@given(rows=st.lists(st.tuples(st.none() | st.text(max_size=80), st.none() | st.integers(-(2**63), 2**63 - 1)), max_size=20))
def test_rows_of_two_columns_hash_as_they_would_alone(few: int, rows: list[tuple[str | None, int | None]]) -> None:
    with mock.patch.object(keygroups, "_FEW", few):
        hash_together_and_alone(rows)


def hash_together_and_alone(rows: list[tuple[str | None, int | None]]) -> None:
    rows = [row for row in rows if row[0] is None or row[0].isprintable()]
    batch = keys(array("string", [a for a, _ in rows]), array("int64", [b for _, b in rows]))
    assert signed(hash_keys(batch)) == [vector(("string", "int64"), row)["hash"] for row in rows]
    first = hash_keys(batch.select([0]))
    assert hash_keys(batch.select([1]), first).tolist() == hash_keys(batch).tolist()


@pytest.mark.parametrize(
    ("given_type", "canonical"),
    [
        (pa.int8(), pa.int64()),
        (pa.uint32(), pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ms"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.decimal128(5, 2), pa.decimal128(5, 2)),
        (pa.bool_(), pa.bool_()),
    ],
    ids=str,
)
def test_canonical_types(given_type: pa.DataType, canonical: pa.DataType) -> None:
    assert canonical_type(given_type) == canonical
    assert canonical_type(canonical) == canonical


@pytest.mark.parametrize(
    "type", [pa.float64(), pa.float16(), pa.list_(pa.int64()), pa.struct([]), pa.null(), pa.time64("us")], ids=str
)
def test_what_cannot_be_a_key_is_refused_with_a_hint(type: pa.DataType) -> None:
    with pytest.raises(PlanError, match="cast"):
        canonical_type(type)


def test_equal_keys_of_different_types_become_one() -> None:
    texts = ["ad-1", None, "ad-2", "ad-1"]
    forms = [pa.array(texts), pa.array(texts, pa.large_string()), pa.array(texts).dictionary_encode()]
    for form in forms:
        batch = pa.record_batch({"other": [1, 2, 3], "ad": form[1:]})
        assert canonical_keys(batch, ["ad"]).to_pydict() == {"ad": texts[1:]}
        assert canonical_keys(batch, ["ad"]).schema.types == [pa.string()]
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    stamps = [pa.array([at], pa.timestamp(unit, "UTC")) for unit in ("s", "ms", "us", "ns")]
    assert len({signed(hash_keys(canonical_keys(keys(stamp), ["k0"])))[0] for stamp in stamps}) == 1


def test_values_that_would_become_another_key_are_refused() -> None:
    with pytest.raises(RowError, match="k0"):
        canonical_keys(keys(pa.array([2**63], pa.uint64())), ["k0"])
    with pytest.raises(RowError, match="k0"):
        canonical_keys(keys(pa.array([1_001], pa.timestamp("ns", "UTC"))), ["k0"])


def test_a_missing_key_column_is_named() -> None:
    with pytest.raises(PlanError, match=r"'user'.*k0"):
        canonical_keys(keys(pa.array([1])), ["user"])


def test_the_group_of_a_negative_hash_is_not_negative() -> None:
    hashes = np.array([-1, -128, -129, 5], np.int64).view(np.uint64)
    assert groups_of(hashes, 128).tolist() == [127, 0, 127, 5]


@pytest.mark.parametrize("parallelism", range(1, 9))
@pytest.mark.parametrize("max_parallelism", [8, 9, 13, 128, 32_768])
def test_ranges_and_owners_agree(parallelism: int, max_parallelism: int) -> None:
    groups = np.arange(max_parallelism, dtype=np.int32)
    owners = owner(groups, parallelism, max_parallelism)
    ranges = [group_range(task, parallelism, max_parallelism) for task in range(parallelism)]
    assert [group for each in ranges for group in each] == groups.tolist()
    for task, each in enumerate(ranges):
        assert (owners[each.start : each.stop] == task).all()


SQL = {
    "bool": "cast({0} as boolean)",
    "int64": "cast('{0}' as bigint)",
    "string": "decode(unhex('{1}'), 'UTF-8')",
    "binary": "unhex('{0}')",
    "date32": "date_add(date'1970-01-01', {0})",
    "timestamp": "timestamp_micros({0})",
}
SQL_NULL = {"int64": "bigint", "date32": "date", "bool": "boolean"}


def sql(type: str, value: Any) -> str:
    if value is None:
        return f"cast(null as {SQL_NULL.get(type, type)})"
    if type.startswith("decimal"):
        return f"cast('{value}' as {type})"
    return SQL[type].format(value, str(value).encode().hex())


@pytest.mark.spark
def test_spark_computes_the_same_hashes(spark: Any) -> None:
    entries = vectors()["vectors"]
    calls = [f"xxhash64({', '.join(map(sql, entry['types'], entry['key']))})" for entry in entries]
    rows = spark.sql(f"select {', '.join(f'{call}, pmod({call}, 128)' for call in calls)}").collect()
    assert list(rows[0]) == [number for entry in entries for number in (entry["hash"], entry["group_of_128"])]


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(vectors(), ensure_ascii=False, indent=1) + "\n")
