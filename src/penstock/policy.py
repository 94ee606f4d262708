"""What becomes of a row that cannot be processed: the job stops, or the row is set aside, now or after some more attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import Fix, PlanError
from penstock.eventtime import duration_text, micros

DELAY_US = 100_000
ATTEMPTS = Fix("retry.attempts", "Write: pen.retry(3)")


@dataclass(frozen=True, slots=True)
class Policy:
    """Up to `attempts` attempts; if all fail, `then`: "fail" or "dead-letter"."""

    then: str = "fail"
    attempts: int = 1
    delay: int = DELAY_US  # microseconds before the second attempt, doubled before each further one

    def text(self) -> str:
        """For explain()."""
        if self.attempts == 1:
            return f'"{self.then}"'
        return f'retry({self.attempts}, then="{self.then}", delay="{duration_text(self.delay)}")'


def retry(attempts: int, *, then: str = "fail", delay: Any = "100ms") -> Policy:
    """Try a row up to `attempts` times in all, then fail or set it aside: `on_error=pen.retry(3, then="dead-letter")`.

    Args:
        delay: how long `map_async` waits before the second attempt; doubled before each further one, up to a minute. Functions that
        are not awaited are called again at once: whoever waits there keeps all other rows waiting.

    >>> retry(3, then="dead-letter", delay="1s").text()
    'retry(3, then="dead-letter", delay="1s")'
    """
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise PlanError(f"retry({attempts!r}) is no number of attempts, of which there is at least 1", fix=ATTEMPTS)
    wait = micros(delay, "delay")
    if wait < 0:
        raise PlanError(
            f'delay="{duration_text(wait)}" is negative', fix=Fix("retry.delay", f'Write: delay="{duration_text(-wait)}"')
        )
    return Policy(_word(then, "then"), attempts, wait)


def policy_of(on_error: object, default: Policy | None = None) -> Policy:
    """What a user wrote as `on_error=`; None stands for `default`, if there is one."""
    if isinstance(on_error, Policy):
        return on_error
    if on_error is None and default is not None:
        return default
    return Policy(_word(on_error, "on_error"))


def _word(value: object, what: str) -> str:
    if value not in ("fail", "dead-letter"):
        more = ', or on_error=pen.retry(3, then="dead-letter")' if what == "on_error" else ""
        raise PlanError(
            f"{what}={value!r} is not known", fix=Fix("retry.then", f'Write: {what}="fail", or {what}="dead-letter"{more}')
        )
    return str(value)
