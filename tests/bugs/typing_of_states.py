"""A user of states runs a type checker over this very file. It said that `a` needs an annotation, and that `get` gives Any."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import penstock as pen

if TYPE_CHECKING:
    from typing import reveal_type


class Count(pen.ProcessFunction):
    a = pen.ValueState(int)
    b = pen.ValueState(int, default=0)
    c: pen.ValueState[int] = pen.ValueState(int)

    def on_row(self, row: dict[str, int], ctx: pen.Context) -> None:
        reveal_type(self.a.get())
        reveal_type(self.b.get())
        reveal_type(self.c.get())
        self.c.set("wrong")


if __name__ == "__main__":
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", __file__], capture_output=True, text=True
    )
    print(done.stdout + done.stderr)
