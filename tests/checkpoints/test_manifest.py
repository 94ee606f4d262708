"""Manifests: there and back again, and nothing else gets through."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from checkpoint_samples import PENDING, handle, manifest, step
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoints.envelope import Envelope, canonical, checksum, seal, unseal
from penstock.checkpoints.manifest import (
    AppliedEntry,
    FieldEntry,
    InFlightEntry,
    Manifest,
    OperatorEntry,
    PendingEntry,
    SinkEntry,
    SourceEntry,
    SplitEntry,
    StateEntry,
    decode_savepoint,
    encode_savepoint,
)
from penstock.errors import ConfigError, CorruptError

FULL = manifest(7, 3, handles=(handle("state/a.arrow"),), pending=PENDING, parent=("old", 4))

FLIGHT = InFlightEntry("counts", 0, (("ad", "string", True),), 0, 127, "state/flight.arrow", "frames", 3, 400, "c" * 32)


def test_a_manifest_survives_its_own_bytes() -> None:
    assert decode_savepoint(encode_savepoint(FULL), "x") == FULL
    assert Manifest.from_json(json.loads(FULL.to_text()), "x") == FULL


def test_every_single_bit_flip_is_detected() -> None:
    data = encode_savepoint(FULL)
    for index in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[index] ^= 1 << bit
            with pytest.raises(CorruptError, match=r"^log/x\.json: "):
                decode_savepoint(bytes(flipped), "log/x.json")


def test_every_truncation_and_any_addition_is_detected() -> None:
    data = encode_savepoint(FULL)
    for length in range(len(data)):
        with pytest.raises(CorruptError, match=r"^log/x\.json: "):
            decode_savepoint(data[:length], "log/x.json")
    for more in (b"\0", b"\n", data):
        with pytest.raises(CorruptError):
            decode_savepoint(data + more, "x")


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_corrupt_error(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_savepoint(data, "x")
    sealed = b'{"format":"penstock","length":%d,"sha256":"%s"}\n' % (len(data), checksum(data).encode()) + data
    with pytest.raises(CorruptError):
        unseal(sealed, "x")


def sealed_payload(payload: bytes) -> bytes:
    return b'{"format":"penstock","length":%d,"sha256":"%s"}\n' % (len(payload), checksum(payload).encode()) + payload


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"1e5",
        b"NaN",
        b"9" * 5000,
        b'{"a":1,"a":2}',
        b"\xff",
        b"1.5",
        b"",
        b"99999999999999999999",
    ],
)
def test_json_that_is_not_ours_is_refused(payload: bytes) -> None:
    with pytest.raises(CorruptError):
        unseal(sealed_payload(payload), "x")


def envelope_with(**changes: Any) -> bytes:
    data = encode_savepoint(FULL)
    payload = json.loads(data.split(b"\n", 1)[1])
    payload.update(changes)
    return sealed_payload(canonical(payload))


def test_a_file_for_later_readers_is_refused_with_both_versions() -> None:
    with pytest.raises(CorruptError, match="needs a reader of format 3; this Penstock reads 1"):
        decode_savepoint(envelope_with(format_version=4, min_reader_version=3), "x")


def test_an_unknown_required_feature_is_refused_by_name() -> None:
    with pytest.raises(CorruptError, match="needs sideways"):
        decode_savepoint(envelope_with(requires=["unaligned", "sideways"]), "x")


def test_unknown_fields_pass_only_in_a_later_version() -> None:
    body = {**json.loads(FULL.to_text()), "novelty": 1}
    with pytest.raises(CorruptError, match="unknown field 'novelty'"):
        decode_savepoint(envelope_with(body=body), "x")
    assert decode_savepoint(envelope_with(body=body, format_version=2), "x") == FULL


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


FREE = {"params", "position", "committables", "state"}  # anything goes inside


@pytest.mark.parametrize("place", [p for p in places(FULL.to_json()) if not FREE & set(p)], ids=lambda p: ".".join(map(str, p)))
def test_every_field_is_checked_for_its_type(place: tuple[Any, ...]) -> None:
    for wrong in (1.5, {"x": []}, [[]], "\n", True, -(1 << 70), None):
        body = json.loads(FULL.to_text())
        target = body
        for key in place[:-1]:
            target = target[key]
        kept = target[place[-1]]
        allowed = type(kept) is type(wrong) or wrong is None or (wrong == "\n" and isinstance(kept, str))
        target[place[-1]] = wrong
        if not allowed:
            with pytest.raises(CorruptError, match=r"^log/x\.json: manifest"):
                Manifest.from_json(body, "log/x.json")
            continue
        with contextlib.suppress(CorruptError):
            Manifest.from_json(body, "log/x.json")


def test_rows_in_flight_are_files_of_the_checkpoint() -> None:
    unaligned = replace(FULL, in_flight=(FLIGHT, replace(FLIGHT, path="state/other", first_group=64)), cut="unaligned")
    assert Manifest.from_json(json.loads(unaligned.to_text()), "x") == unaligned
    assert set(unaligned.files()) == {*FULL.files(), FLIGHT.path, "state/other"}
    assert InFlightEntry.of(FLIGHT.to_json()) == FLIGHT


@pytest.mark.parametrize("name", sorted(FULL.to_json()))
def test_every_missing_field_is_named(name: str) -> None:
    body = json.loads(FULL.to_text())
    del body[name]
    with pytest.raises(CorruptError, match=rf"manifest\.{name} is missing"):
        Manifest.from_json(body, "x")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"operators": (step(), step())}, "second time"),
        ({"operators": (step(watermarks=((0, 64, 1), (64, 127, 1))),)}, "watermarks"),
        ({"operators": (step(watermarks=((0, 128, 1),)),)}, "watermarks"),
        ({"operators": (step(handles=(handle("../x"),)),)}, "path"),
        ({"operators": (step(handles=({**handle("a"), "min_due": 3},)),)}, "min_due"),
        ({"in_flight": (FLIGHT,)}, "cut is aligned, with 1 files"),
        ({"cut": "unaligned"}, "cut is unaligned, with 0 files"),
        ({"cut": "crooked"}, "cut"),
        ({"in_flight": (FLIGHT,), "cut": "unaligned", "finished": True}, "a finished job has nothing in flight"),
        ({"in_flight": (replace(FLIGHT, path="../x"),), "cut": "unaligned"}, "path"),
        ({"in_flight": (replace(FLIGHT, kind="run"),), "cut": "unaligned"}, "kind"),
        ({"in_flight": (replace(FLIGHT, first_group=8, last_group=7),), "cut": "unaligned"}, "last_group"),
        ({"pipeline": "a/b"}, "pipeline"),
        ({"pending": (PendingEntry(2, "out", ()), PendingEntry(1, "out", ())), "epoch": 3}, "order"),
        ({"pending": (PendingEntry(9, "out", ()),)}, "epoch"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_written(change: dict[str, Any], text: str) -> None:
    with pytest.raises(CorruptError, match=text):
        manifest(**{"epoch": 5, **change}).to_text()


def test_a_fraction_is_refused_with_its_place() -> None:
    source = SourceEntry("clicks", "files", {"0": SplitEntry({"at": 1.5})})
    with pytest.raises(ConfigError, match=r"sources\[0\]\.splits\.0\.position\.at is 1\.5"):
        manifest(sources=(source,)).to_text()


def test_equal_manifests_have_equal_bytes() -> None:
    one = manifest(counters={"a": 1, "b": 2})
    other = manifest(counters={"b": 2, "a": 1})
    assert encode_savepoint(one) == encode_savepoint(other)


def test_another_kind_of_record_is_not_a_savepoint() -> None:
    with pytest.raises(CorruptError, match="expected a savepoint"):
        decode_savepoint(seal(Envelope("term", 1, 1, "", {})), "x")


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
texts = st.text(min_size=1, max_size=10)
integers = st.integers(-(1 << 63), (1 << 63) - 1)
jsons = st.recursive(
    st.none() | st.booleans() | integers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ranges = st.lists(st.tuples(st.integers(0, 127), integers), max_size=3, unique_by=lambda r: r[0]).map(
    lambda found: tuple((group, group, value) for group, value in sorted(found))
)
states = st.builds(
    StateEntry,
    name=names,
    kind=st.sampled_from(["value", "timer", "list"]),
    schema=st.lists(st.builds(FieldEntry, st.integers(0, 99), texts, texts, st.booleans()), max_size=2).map(tuple),
    handles=st.lists(names.map(lambda name: handle(f"state/{name}")), max_size=2).map(tuple),
    floors=ranges,
    ttl_us=st.none() | st.integers(0, 1 << 40),
)
operators = st.builds(
    OperatorEntry,
    name=names,
    kind=texts,
    version=st.integers(1, 9),
    keys=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    inputs=st.lists(texts, max_size=2).map(tuple),
    params=jsons,
    states=st.lists(states, max_size=2, unique_by=lambda state: state.name).map(tuple),
    watermarks=ranges,
)
splits = st.builds(SplitEntry, jsons, st.integers(1, 5), st.none() | integers, st.booleans(), st.none() | integers, st.booleans())
manifests = st.builds(
    manifest,
    st.integers(10, 1 << 40),
    st.integers(1, 1 << 30),
    lineage=names,
    parent=st.none() | st.tuples(names, st.integers(0, 1 << 40)),
    finished=st.booleans(),
    operators=st.lists(operators, max_size=2, unique_by=lambda entry: entry.name).map(tuple),
    sources=st.lists(
        st.builds(SourceEntry, names, texts, st.dictionaries(st.text(max_size=5), splits, max_size=2)),
        max_size=2,
        unique_by=lambda entry: entry.name,
    ).map(tuple),
    sinks=st.lists(st.builds(SinkEntry, names, texts, jsons), max_size=2, unique_by=lambda entry: entry.name).map(tuple),
    pending=st.lists(st.builds(PendingEntry, st.just(3), names, st.lists(jsons, max_size=2).map(tuple)), max_size=2).map(tuple),
    counters=st.dictionaries(st.text(max_size=5), integers, max_size=3),
    applied=st.lists(
        st.builds(AppliedEntry, st.just("rename"), texts, texts, st.integers(0, 9))
        | st.builds(AppliedEntry, st.sampled_from(("drop", "start_empty")), texts, st.none(), st.integers(0, 9)),
        max_size=2,
    ).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(manifests)
def test_any_manifest_survives_its_own_bytes(found: Manifest) -> None:
    data = encode_savepoint(found)
    again = decode_savepoint(data, "x")
    assert again == found
    assert encode_savepoint(again) == data
