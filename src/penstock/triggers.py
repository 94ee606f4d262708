"""Triggers: when a window sends what it has. Values only; `operators/triggering.py` carries them out.

    after_watermark(early=, late=)   when the watermark has passed the window's last moment: once, on time.
                                     Before that whenever `early` says so, afterwards whenever `late` does (default: each row)
    after_count(100)                 when 100 rows have come
    after_time("5s")                 5 seconds (of the machine's clock) after the first row came
    repeatedly(t)                    whenever t fires, for ever
    after_any(a, b), after_all(a, b) when one, or all, of them would fire
    after_each(a, b)                 first a, until it is finished; then b

In the place of a trigger a duration means every so long, and a number every so many rows: `"5s"` is
`repeatedly(after_time("5s"))`, 100 is `repeatedly(after_count(100))`.

A trigger *finishes* when it can never fire again: a count or a time once it fired, `after_any` with the first part that
finishes, `after_all` with the last, `after_each` after its last part; the others never. **A finished trigger loses nothing**:
later rows still go into the window, and what was not sent yet is sent when the window closes (Beam drops such rows).
`early` and `late` start anew when they finish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.errors import Fix, PlanError
from penstock.eventtime import duration_text, micros

__all__ = [
    "AfterAll",
    "AfterAny",
    "AfterCount",
    "AfterEach",
    "AfterTime",
    "AfterWatermark",
    "Repeatedly",
    "Trigger",
    "after_all",
    "after_any",
    "after_count",
    "after_each",
    "after_time",
    "after_watermark",
    "repeatedly",
    "trigger_of",
]


class Trigger:
    """Base of all triggers: frozen values, equal if written alike."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """The triggers it is made of."""
        return ()

    @property
    def endless(self) -> bool:
        """Whether it never finishes."""
        return False

    def text(self) -> str:
        """As the user wrote it."""
        raise NotImplementedError

    def params(self) -> dict[str, Any]:
        """What a checkpoint records: state of one trigger does not fit another."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class AfterCount(Trigger):
    """Once, when so many rows have come."""

    rows: int

    def __post_init__(self) -> None:
        if not isinstance(self.rows, int) or isinstance(self.rows, bool) or self.rows < 1:
            raise PlanError(
                f"after_count({self.rows!r}) never fires: it takes a number of rows, 1 or more",
                fix=Fix("trigger.count", "Write: triggers.after_count(100)"),
            )

    def text(self) -> str:
        """As the user wrote it."""
        return f"after_count({self.rows})"

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        return {"trigger": "after_count", "rows": self.rows}


@dataclass(frozen=True, slots=True)
class AfterTime(Trigger):
    """Once, so long after the first row came, by the machine's clock."""

    delay: int

    def __post_init__(self) -> None:
        if self.delay <= 0:
            raise PlanError(
                f"after_time needs a positive delay, not {duration_text(self.delay)}",
                fix=Fix(
                    "trigger.delay", 'To fire at each row, count. Write: triggers.after_time("5s"), or triggers.after_count(1)'
                ),
            )

    def text(self) -> str:
        """As the user wrote it."""
        return f'after_time("{duration_text(self.delay)}")'

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        return {"trigger": "after_time", "delay": self.delay}


@dataclass(frozen=True, slots=True)
class Repeatedly(Trigger):
    """Again from the start whenever it finishes."""

    part: Trigger

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """What is repeated."""
        return (self.part,)

    @property
    def endless(self) -> bool:
        """By definition."""
        return True

    def text(self) -> str:
        """A duration or a number, if that says it."""
        if isinstance(self.part, AfterTime):
            return f'"{duration_text(self.part.delay)}"'
        return str(self.part.rows) if isinstance(self.part, AfterCount) else f"repeatedly({self.part.text()})"

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        return {"trigger": "repeatedly", "part": self.part.params()}


@dataclass(frozen=True, slots=True)
class _Several(Trigger):
    several: tuple[Trigger, ...]

    def __post_init__(self) -> None:
        if not self.several:
            raise PlanError(
                f"{self._name()}() never fires: it has no parts",
                fix=Fix("trigger.parts", f'Write: triggers.{self._name()}(triggers.after_count(100), triggers.after_time("5s"))'),
            )

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """In order."""
        return self.several

    @classmethod
    def _name(cls) -> str:
        return f"after_{cls.__name__.removeprefix('After').lower()}"

    def text(self) -> str:
        """As the user wrote it."""
        return f"{self._name()}({', '.join(part.text() for part in self.several)})"

    def params(self) -> dict[str, Any]:
        """What a checkpoint records."""
        return {"trigger": self._name(), "parts": [part.params() for part in self.several]}


class AfterAny(_Several):
    """When one of them is ready. Those that are ready fire; the others go on as they are."""

    __slots__ = ()

    @property
    def endless(self) -> bool:
        """The first that finishes ends it."""
        return all(part.endless for part in self.several)


class AfterAll(_Several):
    """When all of them are ready; one that has finished is."""

    __slots__ = ()

    @property
    def endless(self) -> bool:
        """One is enough."""
        return any(part.endless for part in self.several)


class AfterEach(_Several):
    """One after the other: each begins when the one before has finished."""

    __slots__ = ()

    def __post_init__(self) -> None:
        _Several.__post_init__(self)
        for part in self.several[:-1]:
            if part.endless:
                raise PlanError(
                    f"in after_each, {part.text()} never finishes, so what follows it never begins",
                    fix=Fix("trigger.endless", _once(part)),
                )

    @property
    def endless(self) -> bool:
        """Only the last may be."""
        return self.several[-1].endless


@dataclass(frozen=True, slots=True)
class AfterWatermark(Trigger):
    """Once when the watermark has passed the window; before and after that, what `early` and `late` say, again and again."""

    early: Trigger | None = None
    late: Trigger | None = None

    def __post_init__(self) -> None:
        for name, part in (("early", self.early), ("late", self.late)):
            if part and any(isinstance(each, AfterWatermark) for each in _walk(part)):
                raise PlanError(
                    f"{name}={part.text()} waits for the watermark itself",
                    fix=Fix("trigger.watermark", f'Take a duration, or a number of rows. Write: {name}="5s", or {name}=100'),
                )

    @property
    def parts(self) -> tuple[Trigger, ...]:
        """Early, if any, and late."""
        return (self.early, self.or_each_row) if self.early else (self.or_each_row,)

    @property
    def or_each_row(self) -> Trigger:
        """`late`, or its default."""
        return self.late or EACH_ROW

    @property
    def endless(self) -> bool:
        """There may always be one more late row."""
        return True

    def text(self) -> str:
        """As the user wrote it."""
        given = [f"{name}={part.text()}" for name, part in (("early", self.early), ("late", self.late)) if part]
        return f"after_watermark({', '.join(given)})"

    def params(self) -> dict[str, Any]:
        """What a checkpoint records: the default written out."""
        early = self.early.params() if self.early else None
        return {"trigger": "after_watermark", "early": early, "late": self.or_each_row.params()}


EACH_ROW = Repeatedly(AfterCount(1))


def trigger_of(value: object) -> Trigger:
    """A trigger, or what stands for one: a duration or a number of rows."""
    if isinstance(value, Trigger):
        return value
    if isinstance(value, str | timedelta):
        return Repeatedly(after_time(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return Repeatedly(AfterCount(value))
    raise PlanError(
        f"{value!r} is not a trigger",
        fix=Fix(
            "trigger.kind", 'Take a duration, a number of rows, or one of penstock.triggers. Write: trigger="5s", or trigger=100'
        ),
    )


def after_watermark(early: object = None, late: object = None) -> AfterWatermark:
    """When the watermark has passed the window; `early` before, `late` (default: each row) after it."""
    return AfterWatermark(*(None if part is None else trigger_of(part) for part in (early, late)))


def after_time(delay: object) -> AfterTime:
    """So long after the first row came: `after_time("5s")`."""
    return AfterTime(micros(delay, "delay"))


def after_count(rows: int) -> AfterCount:
    """When so many rows have come: `after_count(100)`."""
    return AfterCount(rows)


def repeatedly(trigger: object) -> Repeatedly:
    """Whenever it fires, for ever: `repeatedly(after_any(after_count(100), after_time("5s")))`."""
    return Repeatedly(trigger_of(trigger))


def after_any(*triggers: object) -> AfterAny:
    """When one of them would fire."""
    return AfterAny(tuple(map(trigger_of, triggers)))


def after_all(*triggers: object) -> AfterAll:
    """When all of them would fire."""
    return AfterAll(tuple(map(trigger_of, triggers)))


def after_each(*triggers: object) -> AfterEach:
    """One after the other: `after_each(after_count(1), "1m")` fires on the first row, then every minute."""
    return AfterEach(tuple(map(trigger_of, triggers)))


def _walk(trigger: Trigger) -> Iterator[Trigger]:
    yield trigger
    for part in trigger.parts:
        yield from _walk(part)


def _once(part: Trigger) -> str:
    if isinstance(part, Repeatedly):
        return f"Write it last, or once: {part.part.text()}"
    return "Write it last"
