"""Which errors may pass: the table, walked; and that a verdict is had of any error, whatever it does when it is asked."""

from __future__ import annotations

import concurrent.futures
import errno
import queue
import socket
import sqlite3
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock import errors, passing
from penstock.errors import (
    ChannelError,
    CorruptError,
    DecodeError,
    FunctionError,
    MissingError,
    RetriableError,
    RowError,
    RunnerError,
    StorageError,
    SupersededError,
    UnavailableError,
)
from penstock.passing import RULES, Fate, fate_of, pause_us, text_of
from penstock.tracebacks import Frame, blame

PASSING, THREE_TRIES, FINAL = Fate.PASSING, Fate.THREE_TRIES, Fate.FINAL


class OperationalError(Exception):
    """As psycopg, pymysql and others have it, by PEP 249."""


class AdminShutdown(OperationalError):
    """As psycopg has it."""


class ProgrammingError(Exception):
    """By PEP 249, too: a table that is not there."""


class KafkaError:
    """As confluent_kafka has it: no exception, but an argument of one."""

    def __init__(self, passes: bool) -> None:
        self.passes = passes

    def __repr__(self) -> str:  # the same in every process: it is part of the name of a test
        return f"KafkaError({self.passes})"

    def retriable(self) -> bool:
        return self.passes


class KafkaException(Exception):
    pass


class ThrottledError(Exception):
    """Of a sink that somebody wrote."""

    retriable = True


class RefusedError(Exception):
    retriable = False


class BrokerGone(RetriableError):
    pass


def raised_from(cause: BaseException) -> FunctionError:
    error = FunctionError("the function raised")
    error.__cause__ = cause
    return error


def by_a_function(error: Exception) -> Exception:
    """Raised by code of the user's, as this file is."""
    try:
        raise error
    except Exception as raised:
        return raised


def of_a_row(frames: tuple[Frame, ...]) -> RowError:
    error = RowError("step 'prices' cannot process a row")
    blame(error, "step 'prices'", frames)
    return error


VERDICTS: list[tuple[BaseException, Fate]] = [
    # The operating system, the network, and time-outs.
    (OSError(errno.ENOSPC, "No space left on device"), PASSING),
    (OSError(errno.EIO, "Input/output error"), PASSING),
    (ConnectionResetError("reset"), PASSING),
    (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), PASSING),
    (BrokenPipeError(), PASSING),
    (TimeoutError("too late"), PASSING),
    (TimeoutError(), PASSING),
    (concurrent.futures.TimeoutError(), PASSING),
    (socket.gaierror("no such host"), PASSING),
    (PermissionError("not now"), PASSING),
    (pa.lib.ArrowIOError("a disk"), PASSING),
    # A driver's operational errors.
    (sqlite3.OperationalError("database is locked"), PASSING),
    (AdminShutdown("terminating connection"), PASSING),
    (sqlite3.IntegrityError("not unique"), FINAL),
    (ProgrammingError("no such table"), FINAL),
    # What a source or a sink declares.
    (RetriableError("the broker is electing"), PASSING),
    (BrokerGone(), PASSING),
    (ThrottledError(), PASSING),
    (RefusedError(), FINAL),
    (KafkaException(KafkaError(True)), PASSING),
    (KafkaException(KafkaError(False)), FINAL),
    # Storage of ours.
    (UnavailableError("ENOSPC"), PASSING),
    (StorageError("something else is there"), FINAL),
    # Damage.
    (CorruptError("a checksum"), FINAL),
    (MissingError("a file is gone"), FINAL),
    (DecodeError("no frame"), FINAL),
    # A user's function.
    (raised_from(RuntimeError("the webhook is down")), THREE_TRIES),
    (raised_from(KeyError("price")), THREE_TRIES),
    (raised_from(FileNotFoundError("modle.bin")), THREE_TRIES),
    (raised_from(ConnectionResetError()), THREE_TRIES),
    (raised_from(sqlite3.OperationalError("locked")), THREE_TRIES),
    (raised_from(RetriableError("later")), PASSING),
    (raised_from(ThrottledError()), PASSING),
    (raised_from(CorruptError("the user's own savepoint")), THREE_TRIES),
    (FunctionError("without a cause"), THREE_TRIES),
    (by_a_function(ValueError("no price")), THREE_TRIES),
    (by_a_function(ConnectionResetError()), PASSING),
    (by_a_function(OperationalError()), PASSING),
    (by_a_function(CorruptError("state that a function asked for")), FINAL),
    (by_a_function(StorageError("refused")), FINAL),
    (of_a_row((Frame("ads.py", 24, "price"),)), THREE_TRIES),
    (of_a_row(()), FINAL),
    # Between our own processes.
    (ChannelError("a peer is gone"), PASSING),
    (SupersededError("another has taken over"), FINAL),
    # All else fails at once.
    (RowError("no row"), FINAL),
    (RunnerError("too few slots"), FINAL),
    (errors.RestoreError("does not fit"), FINAL),
    (errors.PlanError("means nothing"), FINAL),
    (pen.PenstockError("anything of ours"), FINAL),
    (ValueError("a mistake"), FINAL),
    (KeyError("price"), FINAL),
    (AssertionError(), FINAL),
    (pa.ArrowInvalid("a null"), FINAL),
    (queue.Empty(), FINAL),
    (MemoryError(), FINAL),
    (KeyboardInterrupt(), FINAL),
]


@pytest.mark.parametrize(("error", "fate"), VERDICTS, ids=lambda value: repr(value)[:60])
def test_what_becomes_of_an_error(error: BaseException, fate: Fate) -> None:
    assert fate_of(error) is fate


def test_each_rule_decides_about_an_error_of_the_table() -> None:
    """A rule that decides nothing is not needed, or is not tested."""
    deciding = [next((rule.what for rule in RULES if met(rule, error)), None) for error, _ in VERDICTS]
    assert {rule.what for rule in RULES} == {what for what in deciding if what is not None}


def met(rule: passing.Rule, error: BaseException) -> bool:
    return rule.met(error)


def test_every_error_of_ours_has_a_verdict_in_the_table() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.PenstockError)}
    named = {base for error, _ in VERDICTS for base in type(error).__mro__}
    assert {kind.__name__ for kind in kinds - named} == {"BadNameError", "ConfigError", "HeldError"}, "refused before a job runs"


class Mute(Exception):
    """As Py4J's, when Java is gone: it cannot even be asked what it says."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    @property
    def retriable(self) -> bool:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


def test_an_error_that_cannot_be_asked_anything_has_a_verdict_and_a_text() -> None:
    assert fate_of(Mute()) is FINAL
    assert text_of(Mute()) == "Mute"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (StorageError("full"), "full"),
        (OSError(28, "full"), None),
    ],
)
def test_the_text_of_an_error_names_its_kind_unless_it_is_ours(error: Exception, text: str | None) -> None:
    assert text_of(error) == (text or "OSError: [Errno 28] full")


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_us(tries, 1_000_000) // 1_000_000 for tries in (1, 2, 3, 6, 7, 99, 10_000)] == [1, 2, 4, 32, 60, 60, 60]


@pytest.mark.parametrize("fate", list(Fate))
def test_a_verdict_travels_as_its_name(fate: Fate) -> None:
    value: Any = fate.value
    assert Fate(value) is fate
