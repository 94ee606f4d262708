"""Line breaks and quotes of a block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors import linemarks
from penstock.connectors.linemarks import Lines, seldom


def test_a_block_knows_its_lines() -> None:
    block = Lines(b'{"a":1}\r\n\n{"b":"\\u0041"}\n{"c":"\x01"}\n')
    assert [block.text(line) for line in range(len(block))] == [b'{"a":1}', b"", b'{"b":"\\u0041"}', b'{"c":"\x01"}']
    assert list(block.plain()) == [0, 1]
    assert block.only(np.array([0, 2])) == b'{"a":1}\r\n{"b":"\\u0041"}\n'


@pytest.mark.parametrize("sample", [1, 4_096], ids=["found late", "found at once"])
def test_what_is_beyond_ascii_is_no_control_character(sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linemarks, "SAMPLE_BYTES", sample)
    block = Lines('{"a":"ö"}\n{"b":"\x02é"}\n{"c":"x"}\n'.encode())
    assert not block.ascii
    assert [block.text(line).decode() for line in block.plain()] == ['{"a":"ö"}', '{"c":"x"}']
    assert Lines(b'{"c":"\x7f"}\n').ascii


@given(st.lists(st.booleans() | st.just(False), max_size=70))
@settings(deadline=None)
def test_what_is_seldom_true_is_found_like_anything_else(mask: list[bool]) -> None:
    assert list(seldom(np.array(mask, bool))) == [number for number, is_true in enumerate(mask) if is_true]


def test_each_place_within_eight_is_found() -> None:
    for place in range(80):
        mask = np.zeros(80 + place % 3, bool)
        mask[place] = True
        assert list(seldom(mask)) == [place]


def test_marks_are_the_start_the_quotes_and_the_end_of_lines_with_so_many_quotes() -> None:
    block = Lines(b'{"a":1}\n{}\n{"b":2}\r\n')
    lines, marks = block.marks(block.plain(), 2)
    assert list(lines) == [0, 2]
    assert marks.tolist() == [[0, 1, 3, 7], [11, 12, 14, 18]]
