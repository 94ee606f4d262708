"""Which errors may pass, and which will happen again: one table, for whatever fails while a job runs.

Who tries again what cannot succeed tells the user late; who gives up what would have passed wakes somebody at night. So every error
that ends an attempt, a commit or the reading of state is judged here, and nowhere else:

1. `PASSING`: the world outside was in the way. It is tried again with growing pauses: an attempt as often as `restarts` says, a commit
   for `PATIENCE_US`.
2. `THREE_TRIES`: a function of the user's raised. Nobody can tell whether it would raise again, so it is tried three times in all.
3. `FINAL`: the same will happen again. The job fails at once.

`RULES` is looked through from the top; the first rule that an error meets is its verdict. What meets none is final: a mistake of ours
or of a library's. From process to process the verdict travels with the error, as its name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import ChannelError, CorruptError, FunctionError, PenstockError, RowError
from penstock.tracebacks import frames_of

__all__ = ["PATIENCE_US", "RULES", "Fate", "Rule", "fate_of", "pause_us", "text_of"]

PATIENCE_US = 15 * 60 * 1_000_000
"""For so long a commit that may pass is tried. Then the job fails, and the epoch is committed by the next start."""


PAUSE_MAX_US = 60_000_000


class Fate(enum.Enum):
    """What becomes of an error."""

    PASSING = "passing"
    THREE_TRIES = "three-tries"
    FINAL = "final"

    @property
    def tries(self) -> int:
        """How often in a row this may happen before it is given up; 0: there is another limit."""
        return {Fate.PASSING: 0, Fate.THREE_TRIES: 3, Fate.FINAL: 1}[self]


@dataclass(frozen=True, slots=True)
class Rule:
    """What meets it, in words and as a test, and the verdict."""

    what: str
    met: Callable[[BaseException], bool]
    fate: Fate


def _declared(error: BaseException) -> bool:
    """Whether it says so itself, as an attribute or a method `retriable`, or does what it was made of (as clients of Kafka have it).
    For a function of the user's what it raised says so."""
    raised = error.__cause__ if isinstance(error, FunctionError) and error.__cause__ is not None else error
    for said in (raised, *raised.args[:1]):
        found = getattr(said, "retriable", None)
        if found is True or (callable(found) and not isinstance(said, type) and found() is True):
            return True
    return False


def _function(error: BaseException) -> bool:
    """A function of a step, a source or a sink: its error is one of ours, with the user's frames."""
    return isinstance(error, FunctionError) or (isinstance(error, RowError) and bool(frames_of(error)))


def _operational(error: BaseException) -> bool:
    """By name, since drivers share no class: PEP 249 says what it is called."""
    return any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)


RULES = (
    Rule("what was stored is damaged", lambda e: isinstance(e, CorruptError), Fate.FINAL),
    Rule("a source, a sink, storage or their driver calls it retriable", _declared, Fate.PASSING),
    Rule("another process of the job is gone", lambda e: isinstance(e, ChannelError), Fate.PASSING),
    Rule("a function of the user's raised", _function, Fate.THREE_TRIES),
    Rule("Penstock refused", lambda e: isinstance(e, PenstockError), Fate.FINAL),
    Rule("the operating system, the network, or a time-out", lambda e: isinstance(e, OSError), Fate.PASSING),
    Rule("a database's driver: not the statement, but its execution", _operational, Fate.PASSING),
    Rule(
        "other code of the user's raised, as of a source of their own",
        lambda e: isinstance(e, Exception) and bool(frames_of(e)),
        Fate.THREE_TRIES,
    ),
)


def fate_of(error: BaseException) -> Fate:
    """What becomes of this error. It is asked for words and attributes, and may raise instead of answering: that changes nothing."""
    for rule in RULES:
        try:
            if rule.met(error):
                return rule.fate
        except Exception:  # an error's own code
            continue
    return Fate.FINAL


def text_of(error: BaseException) -> str:
    """An error as text, whatever it is. Some ask another process for their words (Py4J's ask Java), which may be gone."""
    try:
        text = str(error)
    except Exception:
        text = ""
    if isinstance(error, PenstockError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def pause_us(tries: int, backoff: int) -> int:
    """How long to wait after so many failures, in µs: `backoff`, doubled each time, up to a minute."""
    pause: int = backoff << min(tries - 1, 30)
    return min(pause, PAUSE_MAX_US)
