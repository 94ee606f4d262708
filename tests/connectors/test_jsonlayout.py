"""Lines whose values stand where those of the lines before lead one to expect."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.connectors.jsonlayout import BLOCKS_WITHOUT, LENGTHS_MAX, Layout
from penstock.connectors.linemarks import Lines, Places, Spans

CONSTANTS = [b'{"id":"', b'","kind":"', b'","n":', b',"note":"', b'"}']
"""Four values: texts, and a number as the third."""


def line(id: str, kind: str, n: str, note: str) -> str:
    return f'{{"id":"{id}","kind":"{kind}","n":{n},"note":"{note}"}}'


def block_of(lines: list[str]) -> Lines:
    return Lines("".join(each + "\n" for each in lines).encode())


def lengths_of(rows: list[tuple[str, str, str, str]]) -> Places:
    return np.array([[len(value.encode()) for value in row] for row in rows])


SEEN = [
    ("0001", "view", "5", "a"),
    ("0002", "click", "12", ""),
    ("0003", "purchase", "7", "long enough to need no search at all"),
]


def taught() -> Layout:
    layout = Layout(CONSTANTS, [0, 1, 2, 3])
    layout.learn(lengths_of(SEEN))
    return layout


def texts_of(layout: Layout, block: Lines) -> list[tuple[str, ...]] | None:
    """The values of each line."""
    values = layout.values(block)
    if values is None:
        return None
    columns = []
    for each in values:
        if isinstance(each, Spans):
            columns.append([block.block[a:b].decode() for a, b in zip(each.starts.tolist(), each.ends.tolist())])
        else:
            columns.append([piece.tobytes().decode() for piece in each])
    return list(zip(*columns))


def test_values_are_found_where_they_are() -> None:
    rows = [
        ("abcd", "view", "12", ""),
        ("0002", "purchase", "1", "a note as no one saw before"),
        ("ef01", ",1,2", "1", "x"),
        *SEEN,
    ]
    block = block_of([line(*row) for row in rows])
    assert texts_of(taught(), block) == rows


@pytest.mark.parametrize(
    "other",
    [
        line("12345", "view", "5", "a"),  # a length that never varied
        line("123", "view", "5", "a"),
        line("0001", "sale", "543", "a"),  # and one that did, but was not this
        line("0001", "kind-of-a-surprise", "5", "a"),
        line("0001", 'vi"w', "5", "a"),  # quotes that are too many
        line('00"1', "view", "5", "a"),
        line("0001", "view", "5", "a").replace("kind", "Kind"),
        line("0001", "view", "5", "a").replace('"n":', '"n" :'),
        line("0001", "view", "5", "a") + " ",
        '{"id":"0001"}',
        '""""""""""""""',  # as many quotes as a line has
        '{"id":"' + '"' * 12,
        "{}",
        "",
    ],
)
def test_one_line_that_is_another_and_nothing_is_said_of_the_block(other: str) -> None:
    known = [line(*row) for row in SEEN]
    assert taught().values(block_of(known)) is not None
    assert taught().values(block_of([*known, other])) is None
    assert taught().values(block_of([other, *known])) is None


def test_a_length_that_turns_out_to_vary_is_searched_from_then_on() -> None:
    layout = taught()
    block = block_of([line("12345", "view", "5", "a"), line("1", "view", "5", "a")])
    assert layout.values(block) is None
    layout.learn(lengths_of([("12345", "view", "5", "a"), ("1", "view", "5", "a")]))
    assert layout.values(block) is not None


def test_what_does_not_help_is_left_alone_for_a_while() -> None:
    layout = taught()
    good = block_of([line(*row) for row in SEEN])
    layout.learn(lengths_of(SEEN))  # learned after all: so quotes had to be looked for
    assert [layout.values(good) is not None for _ in range(BLOCKS_WITHOUT + 1)] == [False] * BLOCKS_WITHOUT + [True]


def test_lines_without_values_that_vary_have_the_length_they_had() -> None:
    layout = Layout([b'{"a":"', b'","b":', b"}"], [1])
    layout.learn(np.array([[1, 2]]))
    block = block_of(['{"a":"x","b":12}', '{"a":"y","b":34}'])
    assert layout.values(block) is not None
    assert layout.values(block_of(['{"a":"x","b":12}', '{"a":"y","b":345}'])) is None


def test_values_of_too_many_lengths_are_left_to_the_search_for_quotes() -> None:
    rows = [("0001", "k" * length, "5", "a" * (length % 3)) for length in range(LENGTHS_MAX + 1)]
    layout = Layout(CONSTANTS, [1])
    layout.learn(lengths_of(rows[:-1]))
    block = block_of([line(*row) for row in rows[:-1]])
    assert layout.values(block) is not None
    layout.learn(lengths_of(rows))
    assert layout.values(block) is None


def test_a_block_that_is_shorter_than_a_constant_text_is_another() -> None:
    layout = Layout([b'{"' + b"k" * 100 + b'":"', b'"}'], [0])
    layout.learn(np.array([[1], [2]]))
    assert layout.values(block_of(['""""'])) is None
