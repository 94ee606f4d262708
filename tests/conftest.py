"""Fixtures that tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

# How long an example takes is the machine's business, and a first one imports things.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")


SLOW_FILES = (
    "runners/test_supervisor.py",
    "conformance/test_conformance.py",
    "test_transcripts.py",
    "bugs/test_bugs.py",
    "runners/test_cluster.py",
    "protocol/test_explorer.py",
    "test_demo.py",
    "differential/test_differential.py",
    "operators/test_values.py",
)
"""Those that take longest. They come first: a file is tested by one process, and the other must not wait for the last one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((number for number, name in enumerate(SLOW_FILES) if path.endswith(f"/tests/{name}")), len(SLOW_FILES))

    items.sort(key=rank)  # stable


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """One Spark for the whole run: starting it takes longer than most tests."""
    from penstock.runners.spark.session import get_session

    session = get_session(slots=4)
    yield session
    session.stop()
