"""A sampling profiler for worker processes: where does a task spend its time, as lines of `a;b;c count`.

    BENCHMARK_SAMPLES=folder python -m benchmarks.run --case generated --system continuous --quick

Tasks run in processes that Spark starts, out of a profiler's reach; but the pipeline's own functions run there, and the first
call of one of them starts this. A thread looks at the main thread's stack every few milliseconds. It sees Python frames only:
time in Arrow and numpy is the line that called them.

Print the result: `python -m benchmarks.sampler folder`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

VARIABLE = "BENCHMARK_SAMPLES"
EVERY_S = 0.002
WRITE_S = 1.0

_started = False


def start_if_wanted() -> None:
    """Start sampling this process, once, if the environment says where to."""
    global _started
    if _started or VARIABLE not in os.environ:
        return
    _started = True
    threading.Thread(target=_sample, args=(Path(os.environ[VARIABLE]),), daemon=True, name="sampler").start()


def _sample(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    main = threading.main_thread().ident
    stacks: Counter[str] = Counter()
    atexit.register(_write, folder, stacks)
    write_at = time.monotonic() + WRITE_S
    while True:
        time.sleep(EVERY_S)
        stacks[_stack(sys._current_frames().get(main))] += 1  # type: ignore[arg-type]
        if time.monotonic() > write_at:
            write_at = time.monotonic() + WRITE_S
            _write(folder, stacks)


def _write(folder: Path, stacks: Counter[str]) -> None:
    lines = "".join(f"{stack} {count}\n" for stack, count in list(stacks.items()))
    (folder / f"{os.getpid()}.txt").write_text(lines)


def _stack(frame: FrameType | None) -> str:
    names = []
    while frame is not None:
        code = frame.f_code
        names.append(f"{Path(code.co_filename).stem}.{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return ";".join(reversed(names))


def report(folder: Path, top: int = 25) -> str:
    """The lines that most samples were in: by themselves, and with what they called."""
    own: Counter[str] = Counter()
    with_callees: Counter[str] = Counter()
    for file in folder.glob("*.txt"):
        for line in file.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            frames = stack.split(";")
            own[frames[-1]] += int(count)
            with_callees.update(dict.fromkeys({frame.rpartition(":")[0] for frame in frames}, int(count)))
    total = max(1, sum(own.values()))
    lines = [f"{total} samples", "", "by line"]
    lines += [f"{100 * n / total:5.1f}%  {name}" for name, n in own.most_common(top)]
    lines += ["", "by function, with callees"]
    lines += [f"{100 * n / total:5.1f}%  {name}" for name, n in with_callees.most_common(2 * top)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(Path(sys.argv[1])))
