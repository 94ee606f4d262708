"""Every exception a user can meet. Each message says what was found and what was expected; its second line is the nearest fix.

`PenstockError` is the base. Errors that point at a line of the user's own program carry `where` ("ads.py:24"); the API fills it
in. A `Fix` has an id, and under that id a test in tests/fixes brings the error about, does what the text says, and sees it gone.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "RAISED",
    "BadNameError",
    "ChannelError",
    "ConfigError",
    "CorruptError",
    "DecodeError",
    "Fix",
    "FunctionError",
    "HeldError",
    "JobError",
    "MissingError",
    "PenstockError",
    "PlanError",
    "RestoreError",
    "RetriableError",
    "RowError",
    "RunnerError",
    "StorageError",
    "SupersededError",
    "UnavailableError",
    "brief",
    "readable",
]

SHOWN_MAX = 80

RAISED = (Exception, SystemExit, GeneratorExit)
"""What a function of the user's ends with if it fails. A `sys.exit()` in it must not end a process of the job, without a word."""


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do about an error, printed as the second line of its message.

    Code stands last, after "Write: ", so that it can be copied, and so that a test can run it as it stands:
    `Fix("retry.attempts", "Write: pen.retry(3)")`. Anything else is a sentence.
    """

    id: str
    text: str


def readable(text: str) -> str:
    """Text that anything can store: what is no character (half of a surrogate pair) is written out, as `\\ud800`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class PenstockError(Exception):
    """Base of everything Penstock raises on purpose. `message` is its first line, without `fix`."""

    def __init__(self, message: str = "", *, fix: Fix | None = None) -> None:
        super().__init__(message)
        self.message = readable(message)  # so that any log and any status can say it
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  {readable(self.fix.text)}" if self.fix else self.message


class PlanError(PenstockError):
    """The pipeline as written cannot mean anything, found before it runs.

    `where` is the user's own line ("ads.py:24"); it is printed before the message.
    """

    def __init__(self, message: str = "", *, fix: Fix | None = None, where: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {super().__str__()}" if self.where else super().__str__()


class ConfigError(PenstockError):
    """An option has a value that cannot be used."""


class RunnerError(PenstockError):
    """This Spark, or this machine, cannot run the pipeline as asked."""


class RestoreError(PenstockError):
    """A checkpoint or savepoint does not fit this pipeline."""


class JobError(PenstockError):
    """The job failed for good while running."""


class HeldError(JobError):
    """The job is already running; the message names the holder."""


class SupersededError(JobError):
    """Another coordinator has taken over this job: this one must stop without committing."""


class StorageError(PenstockError):
    """Storage refused, lost or could not keep something."""


class RetriableError(PenstockError):
    """What a source, a sink or a function raises to say that it may pass: it is tried again (see `passing`)."""

    retriable = True


class UnavailableError(StorageError, RetriableError):
    """The operating system would not read or write just now: a full disk, a mount that is gone."""


class CorruptError(StorageError):
    """A stored file is not what was written: cut short, altered, or of an unknown format."""


class MissingError(CorruptError):
    """A file that a checkpoint names is not there."""


class DecodeError(PenstockError):
    """Bytes from a peer or a journal are not a message of ours."""


class ChannelError(PenstockError):
    """A peer is not who it should be (token, term, attempt), or is gone."""


class RowError(PenstockError):
    """One row cannot be processed; with on_error="dead-letter" it becomes a dead letter instead."""


class FunctionError(RowError):
    """A function of the user's raised. What it raised is the cause."""


class BadNameError(PlanError):
    """A name that cannot be a file name or an identity: what is allowed is in the message."""


def brief(value: object) -> str:
    """A value as a message shows it: on one line, and not at length.

    >>> brief([1, None]), len(brief(list(range(100))))
    ('[1, None]', 80)
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
