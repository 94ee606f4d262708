"""Fixtures that tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# How long an example takes is the machine's business, and a first one imports things.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark for the whole run: starting it takes longer than most tests."""
    from penstock.runners.spark.session import get_session

    session = get_session(slots=4)
    yield session
    session.stop()
