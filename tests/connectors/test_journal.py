"""The journal: every flipped or missing byte is noticed, and a torn tail is the only damage that is forgiven."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors import journal as journals
from penstock.connectors.journal import END, JournalReader, JournalWriter, collect
from penstock.errors import CorruptError, HeldError, StorageError


def payloads(folder: Path, position: Any = None) -> list[bytes]:
    """All payloads after a position; b"END" stands for the end."""
    reader = JournalReader(folder, position)
    found = []
    try:
        while (frame := reader.next()) is not None:
            reader.advance(frame)
            found.append(b"END" if frame.kind == END else frame.payload)
            if frame.kind == END:
                break
    finally:
        reader.close()
    return found


def write(folder: Path, contents: list[bytes], *, roll_bytes: int = 1 << 20, end: bool = False) -> None:
    writer = JournalWriter(folder, roll_bytes=roll_bytes)
    for content in contents:
        writer.append(1, content)
    if end:
        writer.end()
    writer.close()


CONTENTS = [b"first", b"", b"the third", b"PJF1 looks like a marker", b"last"]


def test_what_is_appended_is_read_also_over_several_files(tmp_path: Path) -> None:
    assert payloads(tmp_path / "none") == []
    for roll_bytes in (1, 100, 1 << 20):
        folder = tmp_path / str(roll_bytes)
        write(folder, CONTENTS, roll_bytes=roll_bytes)
        assert payloads(folder) == CONTENTS
        write(folder, [b"more"], roll_bytes=roll_bytes, end=True)
        assert payloads(folder) == [*CONTENTS, b"more", b"END"]
    assert len(list((tmp_path / "1").glob("*.journal"))) == 6
    assert len(list((tmp_path / "100").glob("*.journal"))) > 1


def test_a_reader_follows_the_writer_and_resumes_at_any_frame(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, roll_bytes=150)
    reader = JournalReader(tmp_path, None)
    positions = [reader.position(0)]
    for content in CONTENTS:
        assert reader.next() is None
        writer.append(1, content)
        frame = reader.next()
        assert frame is not None
        assert frame.payload == content
        reader.advance(frame)
        positions.append(reader.position(0))
    for index, position in enumerate(positions):
        assert payloads(tmp_path, position) == CONTENTS[index:]


def test_an_ended_journal_stays_ended(tmp_path: Path) -> None:
    write(tmp_path, CONTENTS, end=True)
    writer = JournalWriter(tmp_path)
    assert writer.ended
    writer.close()


def test_there_is_one_writer(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)
    with pytest.raises(HeldError, match="already has a writer"):
        JournalWriter(tmp_path)
    writer.close()
    JournalWriter(tmp_path).close()


@pytest.mark.parametrize("cut", [False, True])
def test_every_byte_of_the_only_file_matters(tmp_path: Path, cut: bool) -> None:
    """Rows are never wrong. A byte that is another one is damage, also in the last frame; bytes that are missing were not written."""
    write(tmp_path, CONTENTS)
    path = tmp_path / "0000000001.journal"
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] if cut else whole[:index] + bytes([whole[index] ^ 0x20]) + whole[index + 1 :])
        if not cut:
            with pytest.raises(CorruptError, match=r"0000000001\.journal is damaged at byte \d+"):
                payloads(tmp_path)
        else:
            found = payloads(tmp_path)
            assert found == CONTENTS[: len(found)]
            assert len(found) < len(CONTENTS)


@pytest.mark.parametrize("cut", [False, True])
def test_every_byte_of_an_earlier_file_matters(tmp_path: Path, cut: bool) -> None:
    write(tmp_path, CONTENTS, roll_bytes=150)
    path = tmp_path / "0000000001.journal"
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] if cut else whole[:index] + bytes([whole[index] ^ 0x01]) + whole[index + 1 :])
        with pytest.raises(CorruptError, match=r"0000000001\.journal"):
            payloads(tmp_path)
    path.unlink()
    with pytest.raises(CorruptError, match="rows are needed from file 1"):
        payloads(tmp_path)


def test_a_torn_tail_is_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    write(tmp_path, CONTENTS)
    path = tmp_path / "0000000001.journal"
    whole = path.read_bytes()
    last = len(whole) - len(CONTENTS[-1]) - journals.FRAME_HEADER.size
    for length in [*range(journals.FILE_HEADER.size), *range(last, len(whole))]:
        # A file system may have made the file longer already, and filled it with zeros.
        for size in (length, journals.FILE_HEADER.size if length < last else len(whole)):
            path.write_bytes(whole[:length].ljust(size, b"\0"))
            kept = CONTENTS[:-1] if length >= last else []
            assert payloads(tmp_path) == kept
            write(tmp_path, [b"after"])
            assert payloads(tmp_path) == [*kept, b"after"]


def test_a_sector_that_was_never_written_tears_a_frame_and_a_flipped_bit_does_not(tmp_path: Path) -> None:
    write(tmp_path, [b"first", b"x" * 3_000])
    path = tmp_path / "0000000001.journal"
    whole = path.read_bytes()
    path.write_bytes(whole[:1_024] + bytes(512) + whole[1_536:])
    assert payloads(tmp_path) == [b"first"]
    for index in (100, 1_100, 2_900):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        with pytest.raises(CorruptError, match="all of its last frame is there"):
            payloads(tmp_path)
        with pytest.raises(CorruptError, match="all of its last frame is there"):
            JournalWriter(tmp_path)


def test_what_a_writer_adds_while_a_reader_looks_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(1, b"first")
    reader = JournalReader(tmp_path, None)
    frame = reader.next()
    assert frame is not None
    reader.advance(frame)
    read, added = os.pread, []

    def pread(handle: int, size: int, offset: int) -> bytes:
        """The writer is faster: two frames come between a look at the file and the next one."""
        found = read(handle, size, offset)
        if not added:
            added.append(True)
            writer.append(1, b"second")
            writer.append(1, b"third")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", pread)
        assert reader.next() is None
    frame = reader.next()
    assert frame is not None
    assert frame.payload == b"second"
    reader.close()
    writer.close()


def test_damage_is_not_taken_for_a_torn_tail_by_the_writer(tmp_path: Path) -> None:
    write(tmp_path, CONTENTS)
    path = tmp_path / "0000000001.journal"
    data = bytearray(path.read_bytes())
    data[journals.FILE_HEADER.size + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="damaged at byte 24"):
        JournalWriter(tmp_path)
    assert path.read_bytes() == data


def test_rows_that_were_read_before_cannot_vanish_unnoticed(tmp_path: Path) -> None:
    write(tmp_path, CONTENTS)
    path = tmp_path / "0000000001.journal"
    size = path.stat().st_size
    end = {"file": 1, "offset": size, "row": 0}
    assert payloads(tmp_path, end) == []
    last = size - len(CONTENTS[-1]) - journals.FRAME_HEADER.size
    os.truncate(path, size - 1)
    for position in (end, {"file": 1, "offset": last, "row": 1}):
        with pytest.raises(CorruptError, match="rows that were read before are gone"):
            payloads(tmp_path, position)
    path.unlink()
    with pytest.raises(CorruptError, match="no files"):
        payloads(tmp_path, end)


def test_collecting_removes_what_lies_before_a_position(tmp_path: Path) -> None:
    write(tmp_path, CONTENTS, roll_bytes=1)
    collect(tmp_path, {"file": 3, "offset": 24, "row": 0})
    assert sorted(path.name for path in tmp_path.glob("*.journal"))[0] == "0000000003.journal"
    assert payloads(tmp_path, {"file": 3, "offset": 24, "row": 0}) == CONTENTS[2:]
    with pytest.raises(CorruptError, match="files 3 to 5, and rows are needed from file 1"):
        payloads(tmp_path)


def test_after_a_failed_sync_the_writer_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path)
    writer.append(1, b"good")

    def fail(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="could not be written"):
            writer.append(1, b"lost")
    with pytest.raises(StorageError, match="failed before"):
        writer.append(1, b"lost too")
    writer.close()
    write(tmp_path, [b"next"])
    assert payloads(tmp_path) in ([b"good", b"next"], [b"good", b"lost", b"next"])
