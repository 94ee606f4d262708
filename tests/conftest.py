"""Fixtures that tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark for the whole run: starting it takes longer than most tests."""
    from penstock.runners.spark.session import get_session

    session = get_session(slots=4)
    yield session
    session.stop()
