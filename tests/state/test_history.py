"""What gets merged when: the list stays short, and the work follows the rows."""

from __future__ import annotations

import random

import pytest

from penstock.state import history
from penstock.state.history import RUNS_MAX, choose_merge


def merged_by(sizes: list[int]) -> tuple[list[int], int]:
    """The sizes after one store, and the rows it had to move. Nothing is ever replaced: the worst case."""
    chosen = choose_merge(sizes, [0] * len(sizes))
    if chosen is None:
        return sizes, 0
    work = sum(sizes[chosen.start : chosen.stop])
    return [*sizes[: chosen.start], work, *sizes[chosen.stop :]], work


def test_few_runs_are_left_alone() -> None:
    assert choose_merge([1] * RUNS_MAX, [1] * RUNS_MAX) is None


def test_like_is_merged_with_like() -> None:
    assert choose_merge([1] * 9, [0] * 9) == range(9)
    assert choose_merge([1] * 8 + [9], [0] * 9) == range(8)


def test_a_small_run_does_not_rewrite_a_large_one_alone() -> None:
    sizes = [1] + [10**power for power in range(6, 14)]
    chosen = choose_merge(sizes, [0] * 9)
    assert chosen is not None
    assert chosen.stop - chosen.start > 2 or chosen.start > 0


@pytest.mark.parametrize("seed", range(5))
def test_runs_stay_few_and_each_row_moves_seldom(seed: int) -> None:
    dice = random.Random(seed)
    sizes: list[int] = []
    rows = work = 0
    for _ in range(3_000):
        size = dice.choice([1, 1, 10, 100, dice.randint(1, 5_000)])
        rows += size
        sizes, moved = merged_by([size, *sizes])
        work += moved
        assert len(sizes) <= RUNS_MAX
    assert sum(sizes) == rows
    # Measured: 12 to 14 times; the best possible with 8 runs is about 6. The bound is against a change for the worse.
    assert work < 20 * rows


def test_a_trickle_after_a_bulk_load_hardly_ever_rewrites_the_bulk() -> None:
    sizes = [10**power for power in range(3, 11)]
    large = 0
    for _ in range(2_000):
        sizes, moved = merged_by([1, *sizes])
        large += moved >= 10**4
        assert len(sizes) <= RUNS_MAX
    assert large < 10


def test_a_list_that_came_long_from_a_rescale_shrinks() -> None:
    sizes = [2 ** (i % 8) * 1_000 for i in range(64)]
    for _ in range(64):
        sizes, _ = merged_by([1, *sizes])
    assert len(sizes) <= RUNS_MAX


def test_a_merge_never_exceeds_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MERGE_BYTES_MAX", 10)
    assert choose_merge([1] * 12, [6] * 12) is None
    chosen = choose_merge([1] * 12, [4] * 12)
    assert chosen is not None
    assert len(chosen) == 2
