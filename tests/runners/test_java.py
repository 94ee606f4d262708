"""That Spark's Java process is gone is said as such, however it was noticed."""

from __future__ import annotations

import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import RunnerError
from penstock.runners.spark.java import java_death, naming_java_death


def spark(**gateway: Any) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(**gateway)))


def process(*codes: int | None) -> Any:
    """Whose exit code is these, one look after the other."""
    left = list(codes)
    return SimpleNamespace(poll=lambda: left.pop(0) if len(left) > 1 else left[0])


REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "was killed by SIGKILL"), (-200, "was killed by signal 200"), (137, "has ended with exit code 137")]
)
def test_it_is_said_how_it_ended(code: int, words: str) -> None:
    with pytest.raises(RunnerError, match=rf"\(the JVM\) {words}") as raised, naming_java_death(spark(proc=process(code))):
        raise REFUSED
    assert "Errno" not in str(raised.value)


def test_it_may_be_gone_only_a_moment_after_it_stopped_to_answer() -> None:
    assert java_death(spark(proc=process(None, None, None, -9)), REFUSED) is not None


def test_what_else_is_raised_while_it_lives_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="no such thing"), naming_java_death(spark(proc=process(None))):
        raise ValueError("no such thing")
    assert java_death(spark(proc=process(None))) is None


def test_a_java_that_started_us_is_gone_once_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address, port = listener.getsockname()
        where = SimpleNamespace(address=address, port=port)
        assert java_death(spark(proc=None, gateway_parameters=where)) is None
    died = java_death(spark(proc=None, gateway_parameters=where))
    assert "does not answer any more" in str(died)
