"""Whose mistake it was: of all the frames that an exception passed through, those that the user wrote.

A function of the user's is called from deep within a task, often in another process. Of the traceback only the user's part helps: from
where Penstock called the function to where it raised. Three things are made of it:

* `told`: a line, which ends in file and line, and carries the frames: the error of a row.
* `blame`: the step, source or sink that was at work is remembered with the exception. Nobody catches anything more or less for it.
* `describe`: all of it as text, which is how an error travels from a worker to the driver, into the status and into the log.

A frame is the user's unless it lies in Penstock, in Python's own library, or in a package that Penstock itself calls. Other packages
count: the user's function called them. Modules of Cython name their files as they lay where they were built (`pyarrow/array.pxi`): of
those, and of code that was made from text, the module says where it lies.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from penstock.errors import RAISED, Fix, FunctionError, PenstockError, readable

__all__ = [
    "Frame",
    "Told",
    "Within",
    "blame",
    "describe",
    "described",
    "frames_of",
    "joined",
    "one_line",
    "place_of",
    "told",
    "users_frames",
]

PACKAGE = str(Path(__file__).resolve().parent) + os.sep
LIBRARY = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
INSTALLED = ("site-packages", "dist-packages")
INNER = {"numpy", "pyarrow", "pandas", "pyspark", "py4j", "sqlglot", "xxhash"}
CYTHON = (".pyx", ".pxi", ".pxd")
FRAMES_MAX = 12
WHO = "_penstock_who"


class Frame(NamedTuple):
    """One call in a traceback."""

    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """As "ads.py:24 in price"."""
        return f"{os.path.basename(self.file)}:{self.line} in {self.function}"


class Told(str):
    """An error in one line, with the user's frames, and with what to do about it if the error says that."""

    __slots__ = ("fix", "frames")
    frames: tuple[Frame, ...]
    fix: Fix | None

    def __new__(cls, text: str, frames: tuple[Frame, ...] = (), fix: Fix | None = None) -> Told:
        """A text that carries frames and a fix. It can be stored as it is, so that nobody makes another text of it, without them."""
        made = super().__new__(cls, readable(text))
        made.frames, made.fix = frames, fix
        return made


def is_users(file: str, module: str | None = None) -> bool:
    """Whether a file is none of ours, and of nobody whom only we call. `module`: the file of the module that the code is in."""
    if not os.path.isabs(file):
        if module is None and file.endswith(CYTHON):
            return False
        file = module or file
    if file.startswith((PACKAGE, "<frozen ")):
        return False
    parts = Path(file).parts
    for folder in INSTALLED:
        if folder in parts:
            return parts[parts.index(folder) + 1].partition(".")[0] not in INNER
    return not file.startswith(LIBRARY) and not any(part.startswith(("pyspark.zip", "py4j-")) for part in parts)


def users_frames(error: BaseException) -> tuple[Frame, ...]:
    """The frames that are the user's, the outermost first: of the exception, or else of the one that it was raised from."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        frames = tuple(frame for frame, module in _frames(current.__traceback__) if is_users(frame.file, module))
        if frames:
            return frames
        seen.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return ()


def frames_of(error: BaseException) -> tuple[Frame, ...]:
    """The user's frames that an exception carries (`blame`), or else passed through: empty if no code of the user's raised it."""
    return (getattr(error, WHO, None) or ("", ()))[1] or users_frames(error)


def _frames(trace: TracebackType | None) -> Iterator[tuple[Frame, str | None]]:
    """The calls, each with the file of its module if that is known."""
    for frame, line in traceback.walk_tb(trace):
        module = frame.f_globals.get("__file__")
        code = frame.f_code
        yield Frame(code.co_filename, line, code.co_qualname), module if isinstance(module, str) else None


def told(error: BaseException, function: Any = None, before: str = "", after: str = "") -> Told:
    """An error of a row as one line: what was raised, and at which line of the user's.

    Args:
        function: whose result was refused, if nothing was raised: then the line is the one where it begins.
    """
    frames = users_frames(error)
    place = _places(frames) or (f"by {place}" if (place := place_of(function)) else "")
    fix = error.fix if isinstance(error, PenstockError) else None
    return Told(f"{before}{one_line(error)}{after}" + (f" ({place})" if place else ""), frames, fix)


def one_line(error: BaseException) -> str:
    """An error with its class, in one line that anything can store: `KeyError: 'n'`. Of one of ours the fix is left out."""
    try:
        text = error.message if isinstance(error, PenstockError) else str(error)
    except Exception:  # an exception of a user's, or one that asks a process that is gone
        return type(error).__name__
    return f"{type(error).__name__}: {readable(text)}" if text else type(error).__name__


def _places(frames: Sequence[Frame]) -> str:
    if not frames:
        return ""
    first, last = frames[0], frames[-1]
    return f"at {first.place}" if first == last else f"at {first.place}, raised at {last.place}"


def place_of(function: Any) -> str:
    """Where a function is written, as "ads.py:20 in price"; empty if it is not written in Python, or not by the user."""
    with contextlib.suppress(Exception):  # an object may answer anything to being looked at
        found: Any = inspect.unwrap(getattr(function, "func", function))
        if not hasattr(found, "__code__"):
            found = type(found).__call__
        code = found.__code__
        if is_users(code.co_filename):
            return Frame(code.co_filename, code.co_firstlineno, code.co_qualname).place
    return ""


def joined(texts: Sequence[str]) -> str:
    """Several errors of one row; of one that carries frames the frames are kept, and of one that carries a fix the fix."""
    several = list(dict.fromkeys(texts))
    if len(several) == 1:
        return several[0]
    frames = next((text.frames for text in several if isinstance(text, Told) and text.frames), ())
    fix = next((text.fix for text in several if isinstance(text, Told) and text.fix), None)
    return Told("; ".join(several), frames, fix)


def blame(error: BaseException, who: str, frames: tuple[Frame, ...] = ()) -> None:
    """Remember who was at work, as "step 'totals' (ads.py:24)", unless somebody deeper was. `frames`: if the exception has none."""
    if getattr(error, WHO, None) is None:
        with contextlib.suppress(Exception):  # some exceptions take no attributes
            setattr(error, WHO, (who, frames))


class Within:
    """`with Within("step 'totals' (ads.py:24)"):` blames what is raised inside.

    What would end a process (`sys.exit()`) ends only the function: it is a `FunctionError`. `GeneratorExit` is one if the user's code
    raised it; else a generator of ours is closed.
    """

    __slots__ = ("_who",)

    def __init__(self, who: str) -> None:
        self._who = who

    def __enter__(self) -> None:
        """Nothing is done."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not isinstance(error, RAISED):
            return
        frames = users_frames(error)
        if isinstance(error, Exception):
            blame(error, self._who, frames)
        elif frames or isinstance(error, SystemExit):
            failed = FunctionError(one_line(error))
            blame(failed, self._who, frames)
            raise failed from error


def describe(error: BaseException, *, named: bool = True) -> str:
    """An error as text: what was wrong and where, the fix if there is one, and the user's frames below.

    Args:
        named: whether the text begins with who is blamed; not where the text before it says so.
    """
    who, frames = getattr(error, WHO, None) or ("", ())
    frames = frames or users_frames(error)
    ours = isinstance(error, PenstockError)
    text = str(error) if ours else one_line(error)
    if not ours and not frames and (inner := list(_frames(error.__traceback__))):
        frame, _ = inner[-1]
        text += f" (in {Path(frame.file).parent.name}/{frame.place})"
    name = who.partition(" (")[0]
    if who and named and name.partition(" ")[2] not in text:
        text = f"{who}: {text}"
    return text + described(frames, who)


def described(frames: Sequence[Frame], who: str = "") -> str:
    """The frames as the lines of a traceback, to be put behind a message; empty if there are none."""
    if not frames:
        return ""
    lines = [f"\n  Your code{', called by ' + who if who else ''}:"]
    shown = frames if len(frames) <= FRAMES_MAX else (*frames[: FRAMES_MAX // 2], None, *frames[-FRAMES_MAX // 2 :])
    for frame in shown:
        if frame is None:
            lines.append(f"    … {len(frames) - FRAMES_MAX} more calls …")
            continue
        lines.append(f'    File "{frame.file}", line {frame.line}, in {frame.function}')
        source = linecache.getline(frame.file, frame.line).strip()
        if source:
            lines.append(f"      {source}")
    return "\n".join(lines)
