"""Draws the pictures of the guide: `python docs/pictures/draw.py` writes them beside this file.

Windows, watermarks and panes are computed here from the rows, in a few lines that know nothing of Penstock. The guide's examples run
the same rows through it, so picture and engine must agree. `tests/test_pictures.py` fails if a file is not what this code draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import gcd
from pathlib import Path
from xml.sax.saxutils import escape

# The panel has a background of its own, so words can be read on any page, also where nobody knows whether it is dark.
COLOURS = {"a": ("#388bfd", "#dcebff", "#17345e"), "b": ("#2da44e", "#d8f0df", "#153d26")}
COLOURS |= {"c": ("#d4821e", "#fae6cc", "#4b3210"), "d": ("#e5484d", "#fcdcdd", "#511e21")}
"""Of lines and dots; of boxes on a light and on a dark panel."""
LINES = "".join(f"rect.{k},line.{k}{{stroke:{line}}}circle.{k}{{fill:{line}}}" for k, (line, _, _) in COLOURS.items())
LIGHT, DARK = ("".join(f"rect.{k}{{fill:{colour[n]}}}" for k, colour in COLOURS.items()) for n in (1, 2))
STYLE = (
    "text{font:13px sans-serif;fill:#1f2328}.panel{fill:#fff;stroke:#d0d7de}.quiet{fill:#59636e}.axis{stroke:#8b949e}"
    f".code{{font:12px monospace}}.mid{{text-anchor:middle}}.dash{{stroke-dasharray:4 3}}.thick{{stroke-width:2}}{LINES}{LIGHT}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.panel{fill:#161b22;stroke:#30363d}.quiet{fill:#9da7b3}"
    f"{DARK}}}"
)

Span = tuple[int, int]


class Picture:
    """Shapes and words on a panel. Kinds are classes of STYLE: a, b, c and d are colours."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self._width, self._height = width, height
        self._parts = [f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>"]
        self._parts.append(f'<rect class="panel" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>')

    def text(self, x: float, y: float, words: object, kind: str = "") -> None:
        """Words; y is the line they stand on."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}"{_class(kind)}>{escape(str(words))}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, words: object = "") -> None:
        """A box with words in its middle."""
        self._parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"{_class(kind)}/>')
        if words != "":
            self.text(x + width / 2, y + height / 2 + 4.5, words, "mid")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> None:
        """A straight line."""
        self._parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"{_class(kind)}/>')

    def dot(self, x: float, y: float, kind: str) -> None:
        """A row."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5"{_class(kind)}/>')

    def seconds(self, at: Callable[[float], float], times: Iterable[int], top: float, bottom: float) -> None:
        """A time axis below, with faint lines up to the top."""
        for time in times:
            self.line(at(time), top, at(time), bottom, "axis dash" if time else "axis")
            self.text(at(time), bottom + 16, f"{time}s", "quiet mid")

    def svg(self) -> str:
        """The file."""
        size = f'width="{self._width}" height="{self._height}" viewBox="0 0 {self._width} {self._height}"'
        return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>', *self._parts, "</svg>", ""])


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


# --- windows of every shape

ROWS = (2, 6, 9, 13, 21, 23, 28, 44, 52)


def holding(spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
    """Windows with how many rows they hold; those without any do not exist."""
    for start, end in spans:
        count = sum(start <= row < end for row in ROWS)
        if count:
            yield (start, end), count


def sessions(rows: Sequence[int], gap: int) -> list[Span]:
    """A row opens [t, t + gap); what overlaps becomes one."""
    found: list[Span] = []
    for row in sorted(rows):
        if found and row < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], row + gap))
        else:
            found.append((row, row + gap))
    return found


def windows() -> str:
    """Nine rows of one key, and the windows of each shape over them."""
    picture = Picture("Nine rows on a time axis, and the windows that each shape makes of them", 880, 420)

    def at(time: float) -> float:
        return 310 + 8 * time

    picture.seconds(at, range(0, 61, 10), 20, 390)
    picture.text(16, 40, "rows of one key")
    for row in ROWS:
        picture.dot(at(row), 36, "a")
    fixed: dict[str, list[Span]] = {
        'tumbling("10s")': [(s, s + 10) for s in range(0, 60, 10)],
        'tumbling("10s", offset="5s")': [(s, s + 10) for s in range(-5, 60, 10)],
        'sliding("20s", every="10s")': [(s, s + 20) for s in range(-10, 60, 10)],
        'session("9s")': sessions(ROWS, 9),
    }
    y = 66
    for name, spans in fixed.items():
        picture.text(16, y + 17, name, "code")
        deep = any(later < end for (_, end), (later, _) in pairwise(spans))  # neighbours overlap: two lines
        for number, ((start, end), count) in enumerate(holding(spans)):
            lower = number % 2 if deep else 0
            picture.box(at(start), y + 30 * lower, 8 * (end - start), 24, "b", count)
        y += 76 if deep else 46
    picture.text(16, y + 17, "tumbling(rows=3)", "code")
    for first in range(0, len(ROWS), 3):
        few = ROWS[first : first + 3]
        picture.box(at(few[0]) - 6, y, 8 * (few[-1] - few[0]) + 12, 24, "b", len(few))
    y += 46
    picture.text(16, y + 17, "running()", "code")
    picture.box(at(-10), y, 8 * 78, 24, "b", f"{len(ROWS)}, and counting")
    return picture.svg()


def slices() -> str:
    """How windows that overlap share their slices."""
    size, every = 30, 20
    width = gcd(size, every)
    picture = Picture('sliding("30s", every="20s"): each row goes into one slice, windows are put together from slices', 860, 250)

    def at(time: float) -> float:
        return 150 + 9 * time

    picture.seconds(at, range(0, 71, 10), 20, 220)
    picture.text(16, 40, "rows")
    for row in ROWS:
        picture.dot(at(row), 36, "a")
    picture.text(16, 77, f"slices of {width}s")
    for (start, end), count in holding((s, s + width) for s in range(0, 70, width)):
        picture.box(at(start), 60, 9 * (end - start), 26, "c", count)
    picture.text(16, 133, "windows")
    for number, ((start, end), count) in enumerate(holding((s, s + size) for s in range(-20, 60, every))):
        parts = [sum(s <= row < s + width for row in ROWS) for s in range(start, end, width)]
        sums = f"{' + '.join(str(part) for part in parts if part)} = {count}" if sum(map(bool, parts)) > 1 else count
        picture.box(at(max(start, -2)), 116 + 34 * (number % 2), 9 * (end - max(start, -2)), 26, "b", sums)
    return picture.svg()


# --- time: the watermark, lateness, and panes of one window

ARRIVALS = (1, 4, 13, 8, 16, 7, 22, 9)
END, DELAY, LATENESS = 10, 5, 5
MICRO = 1e-6


def watermarks(times: Sequence[float]) -> list[float]:
    """The watermark that each row meets, and the last one: what was seen so far, less the delay, and strictly before it."""
    found = [float("-inf")]
    for time in times:
        found.append(max(found[-1], time - DELAY - MICRO))
    return found


def state_of(watermark: float) -> str:
    """What the window [0, END) is when a row meets this watermark."""
    if watermark >= END - MICRO + LATENESS:
        return "closed"
    return "passed" if watermark >= END - MICRO else "open"


def lateness() -> str:
    """Rows as they arrive, against their event time, and how the watermark follows."""
    picture = Picture("Eight rows in the order they arrive. The watermark follows the latest, five seconds behind", 860, 400)
    left, step = 40, 38

    def at(time: float) -> float:
        return left + 18 * time

    top, bottom = 40, 40 + step * len(ARRIVALS)
    picture.box(at(0), top, 18 * END, bottom - top, "a")
    picture.text(at(END / 2), 26, "the window [0s, 10s)", "mid")
    picture.seconds(at, range(0, 26, 5), top, bottom)
    picture.text(left, bottom + 36, "event time; rows arrive from top to bottom", "quiet")
    picture.text(at(27), 26, "line: the watermark that the row meets", "quiet")
    words = {
        "open": "in the window",
        "passed": "late, but taken: lateness is 5s",
        "closed": "too late: in .late",
    }
    latest = float("-inf")
    for number, (time, watermark) in enumerate(zip(ARRIVALS, watermarks(ARRIVALS))):
        y = top + step * number
        if watermark >= 0:
            picture.line(at(watermark), y, at(watermark), y + step, "c thick")
        state = state_of(watermark)
        said = words[state] if time < END else "in another window"
        said += f": {latest - time:g}s behind, within the delay" if state == "open" and time < latest else ""
        kind = "b" if time >= END or state == "open" else "c" if state == "passed" else "d"
        picture.dot(at(time), y + step / 2, kind)
        picture.text(at(time) + 9, y + step / 2 + 4.5, f"{time}s")
        picture.text(at(27), y + step / 2 + 4.5, said)
        latest = max(latest, time)
    return picture.svg()


Event = tuple[str, int, str]  # what happens, how many rows the window holds then, and which pane is sent


def life(early: int) -> list[Event]:
    """What happens to the window [0, END), with a pane at every so many early rows and at each late one."""
    events: list[Event] = []
    count, fresh, state = 0, 0, "open"
    for time, before, after in zip(ARRIVALS, watermarks(ARRIVALS), watermarks(ARRIVALS)[1:]):
        if time < END and state_of(before) == "closed":
            events.append((f"row {time}s", count, "dropped"))
        elif time < END:
            count, fresh = count + 1, fresh + 1
            fires = state == "passed" or fresh == early
            pane = ("late" if state == "passed" else "early") if fires else ""
            fresh = 0 if fires else fresh
            events.append((f"row {time}s", count, pane))
        for next_state, name, pane in (("passed", "end passed", "on_time"), ("closed", "closed", "close")):
            if state != next_state and state_of(after) in (next_state, "closed") and state != "closed":
                state = next_state
                events.append((name, count, pane))
                fresh = 0
    return events


def panes() -> str:
    """What each way of sending sends of one window."""
    picture = Picture("One window from its first row to its close, and what each emit= sends of its count", 860, 330)
    events = life(early=2)
    wide, left = 96, 160

    def middle(number: int) -> float:
        return left + wide * number + wide / 2

    picture.text(16, 30, "what happens")
    picture.text(16, 56, "rows in the window")
    picture.text(16, 82, "pane")
    lanes = ("append", "update", "retract", "delta")
    for lane, emit in enumerate(lanes):
        picture.text(16, 124 + 46 * lane, f'emit="{emit}"', "code")
        picture.line(left, 120 + 46 * lane, left + wide * len(events), 120 + 46 * lane, "axis dash")
    sent = 0
    for number, (what, count, pane) in enumerate(events):
        picture.text(middle(number), 30, what, "mid")
        picture.text(middle(number), 56, count, "mid quiet")
        picture.text(middle(number), 82, "to .late" if pane == "dropped" else "" if pane == "close" else pane, "mid quiet")
        said = {"append": "", "update": "", "retract": "", "delta": ""}
        if pane in ("early", "on_time", "late"):
            withdrawn = f"\u2212{sent}  " if sent else ""
            said = {"append": "", "update": f"{count}", "retract": f"{withdrawn}+{count}", "delta": f"{count - sent}"}
            sent = count
        elif pane == "close":
            said["append"] = f"{count}"
        for lane, emit in enumerate(lanes):
            if said[emit]:
                picture.box(middle(number) - 36, 107 + 46 * lane, 72, 26, "b", said[emit])
    said_of_all = "trigger=after_watermark(early=2, late=1), lateness=5s; append takes no trigger. Time goes to the right."
    picture.text(16, 310, said_of_all, "quiet")
    return picture.svg()


# --- two sessions become one


def merging() -> str:
    """A late row makes two sessions one."""
    picture = Picture("The window of a row at 4s overlaps two sessions: all become one", 860, 260)
    gap, rows, late = 5, (0, 8), 4

    def at(time: float) -> float:
        return 210 + 48 * time

    picture.seconds(at, range(0, 14, 1), 20, 190)
    for y, name, known in ((30, "sent on time", rows), (110, f"after a late row at {late}s", (*rows, late))):
        picture.text(16, y + 17, name)
        for start, end in sessions(known, gap):
            picture.box(at(start), y, 48 * (end - start), 26, "b", f"n = {sum(start <= row < end for row in known)}")
        for row in known:
            picture.dot(at(row), y + 40, "c" if row == late else "a")
    (first, second), (whole,) = (
        [f"[{start}s, {end}s)" for start, end in sessions(known, gap)] for known in (rows, (*rows, late))
    )
    picture.text(16, 228, f'session("{gap}s"), emit="update": {second} is deleted, {first} is replaced by {whole}')
    picture.text(16, 248, f'emit="retract": {first} and {second} are withdrawn, {whole} is added', "quiet")
    return picture.svg()


PICTURES = {"windows": windows, "slices": slices, "lateness": lateness, "panes": panes, "sessions": merging}


def draw() -> dict[str, str]:
    """All pictures, by the name of their file."""
    return {f"{name}.svg": make() for name, make in PICTURES.items()}


if __name__ == "__main__":
    for file, svg in draw().items():
        Path(__file__).with_name(file).write_text(svg)
        print(f"{file}: {len(svg.encode())} bytes")
