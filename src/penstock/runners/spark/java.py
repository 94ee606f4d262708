"""Whether Spark is still there. Its core is a Java process beside ours (the JVM), which may be killed like any other.

What Python then hears from Spark is a refused connection, or an error that cannot even be printed: its words are asked for in Java. So
whoever hears something odd from Spark asks here first. A JVM that died is called that, and ends the job: this process cannot get another,
since the user's session is part of it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

from penstock.errors import Fix, RunnerError
from penstock.passing import text_of

__all__ = ["is_java_gone", "java_death", "naming_java_death"]

LOOK_S = 1.0
"""A process that was killed answers nobody for a moment before it is gone for the system."""
SUSPECT = ("Py4JNetworkError", "Py4JError", "ConnectionError", "EOFError", "SocketException")


def java_death(spark: Any, error: BaseException | None = None) -> RunnerError | None:
    """The error that says that Spark's Java process is gone; None if it lives.

    Args:
        error: what was heard from Spark, if anything: it is waited a little if that sounds like the end.
    """
    until = time.monotonic() + (LOOK_S if error is not None and sounds_like_the_end(error) else 0.0)
    while True:
        how = is_java_gone(spark)
        if how is not None:
            return RunnerError(
                f"the Java process of Spark (the JVM) {how}, and the job cannot go on without it",
                fix=Fix("spark.java_died", "Start the program again: with storage= the job goes on from its newest checkpoint"),
            )
        if time.monotonic() >= until:
            return None
        time.sleep(0.02)


def sounds_like_the_end(error: BaseException) -> bool:
    """Whether it is one of those that Py4J raises when nobody is at the other end. Another whose words cannot be had is, too."""
    chain, seen = error, [error]
    while (inner := chain.__cause__ or chain.__context__) is not None and inner not in seen:
        seen.append(inner)
        chain = inner
    names = {kind.__name__ for each in seen for kind in type(each).__mro__}
    return bool(names & set(SUSPECT)) or text_of(error) == type(error).__name__


def is_java_gone(spark: Any) -> str | None:
    """How it ended ("was killed by SIGKILL"), if it has."""
    gateway = spark.sparkContext._gateway
    if gateway is None:
        return None  # the session was stopped: Java may well be there
    process = getattr(gateway, "proc", None)
    if process is not None:
        code = process.poll()
        return None if code is None else ended(code)
    with contextlib.suppress(OSError, AttributeError):  # Java started us, and tells us where it listens
        where = gateway.gateway_parameters
        socket.create_connection((where.address, where.port), timeout=LOOK_S).close()
        return None
    return "does not answer any more"


def ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"has ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


@contextlib.contextmanager
def naming_java_death(spark: Any) -> Iterator[None]:
    """Within: what is raised because Java is gone says so."""
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        died = java_death(spark, error)
        if died is None:
            raise
        raise died from error
