"""An exception at any call of some modules: first all calls are noted, then each is made to raise, in a run of its own.

A call is a place (file and line) and what is called there. Python tells a profiler of every call before it is made, and what the
profiler raises is raised by the call. Only other threads than the test's are looked at: what a user calls, a user sees fail.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

Call = tuple[str, int, str]


class Injected(Exception):
    """As unpleasant as Py4J's errors when Java is gone: it cannot be asked for its words."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


class Injector:
    """Notes the calls that some modules make, and lets one of them raise, once."""

    def __init__(self, *modules: ModuleType) -> None:
        self._files = {str(module.__file__): module.__name__.rpartition(".")[2] for module in modules}
        self.seen: dict[Call, int] = {}
        self._target: Call | None = None
        self.raised = False

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Within: calls are noted."""
        self._target = None
        with self._profiling():
            yield

    @contextmanager
    def raising(self, call: Call) -> Iterator[None]:
        """Within: the first time that `call` is made, it raises."""
        self._target, self.raised = call, False
        with self._profiling():
            yield

    @contextmanager
    def _profiling(self) -> Iterator[None]:
        threading.setprofile(self._called)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            caller, name = frame.f_back, frame.f_code.co_name
        elif event == "c_call":
            caller, name = frame, getattr(argument, "__name__", "?")
        else:
            return
        if caller is None or (module := self._files.get(caller.f_code.co_filename)) is None:
            return
        call = (f"{module}.{caller.f_code.co_name}", caller.f_lineno, name)
        if self._target is None:
            self.seen[call] = self.seen.get(call, 0) + 1
        elif call == self._target and not self.raised:
            self.raised = True
            sys.setprofile(None)
            raise Injected


def ends(run: Callable[[], Any], call: Call, injector: Injector, within_s: float) -> str | None:
    """Run once with an exception at `call`; what was wrong with how it ended, or None. `run` raises what it has against the end."""
    result: list[str | None] = []

    def watched() -> None:
        sys.setprofile(None)  # the user's thread
        try:
            run()
            result.append(None)
        except BaseException as error:
            result.append(f"{type(error).__name__}: {error}")

    with injector.raising(call):
        thread = threading.Thread(target=watched, daemon=True)
        thread.start()
        thread.join(within_s)
    return result[0] if result else f"no outcome within {within_s:.0f} s"
