"""Which names are names."""

from __future__ import annotations

import pytest

from penstock.errors import BadNameError
from penstock.names import check_name


@pytest.mark.parametrize("name", ["a", "ad-counts", "A.b_c-9", "0" * 128])
def test_good_names_are_names(name: str) -> None:
    assert check_name(name, "a pipeline") == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "a\n", "é", "a\0", "0" * 129, "../x", "<img onerror>"])
def test_bad_names_are_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(BadNameError, match=r"cannot be the name of a pipeline: letters"):
        check_name(name, "a pipeline")
