"""Pictures of the results, drawn with the pen of the guide's pictures (`docs/pictures/draw.py`)."""

from __future__ import annotations

import functools
import importlib.util
import math
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.report import CURVES, LATENCIES, NAMES, TITLES, UNITS, rate_of, rate_text

ROOT = Path(__file__).parent.parent
WIDTH, LEFT, BAR, GAP = 860, 240, 20, 6
COLOUR_OF = {"continuous": "a", "microbatch": "b"}  # all peers are c
LINE_OF = {
    "continuous": "a",
    "continuous-100ms": "a dash",
    "microbatch": "b",
    "local": "d",
    "flink": "c",
    "flink-latency": "c dash",
}  # others are grey
PANEL, LEGEND = 190, 22
TIMES = {"p50_ms": ("a", "p50"), "p99_ms": ("c", "p99"), "p999_ms": ("d", "p99.9")}


def draw(results: list[dict[str, Any]]) -> dict[str, str]:
    """All pictures, by the name of their file; none for cases that did not run."""
    rates = [result for result in results if result["case"] in TITLES]
    times = [result for result in results if result["case"] in LATENCIES]
    curves = [result for result in results if result["case"] == "scaling"]
    steady = [result for result in results if result["case"] == "load"]
    drawn = {"throughput.svg": (throughput, rates), "latency.svg": (latency, times), "scaling.svg": (scaling, curves)}
    drawn["load.svg"] = (load, steady)
    return {name: picture(found) for name, (picture, found) in drawn.items() if found}


def throughput(results: list[dict[str, Any]]) -> str:
    """A bar per system and case. Each case has its own scale: generated events are ten times as fast as JSON."""
    cases = {case: [result for result in results if result["case"] == case] for case in TITLES}
    cases = {case: found for case, found in cases.items() if found}
    height = 20 + sum(44 + (BAR + GAP) * len(found) for found in cases.values())
    picture = pen().Picture("Events per second of Penstock and its peers, whole runs", WIDTH, height)
    y = 30
    for case, found in cases.items():
        picture.text(16, y, f"{TITLES[case]}: million events per second")
        y += 14
        most = max(result["whole"] for result in found)
        for result in found:
            kind = COLOUR_OF.get(result["system"], "c")
            bar(picture, y, NAMES[result["system"]], result["whole"] / most, kind, f"{result['whole'] / 1e6:.2f}")
            y += BAR + GAP
        y += 30
    return str(picture.svg())


def latency(results: list[dict[str, Any]]) -> str:
    """Three bars per system and rate, on a logarithmic scale that begins at a tenth of a millisecond."""
    height = 60 + sum(34 + (BAR + GAP) * len(TIMES) for _ in results)
    picture = pen().Picture("How late rows are counted: p50, p99 and p99.9 of Penstock and Flink", WIDTH, height)
    picture.text(16, 30, "milliseconds from when a row is due to when it is counted; each step of a bar's length is a factor")
    most = scale(max(result["p999_ms"] for result in results))
    y = 60
    for result in results:
        picture.text(16, y, f"{NAMES[result['system']]}, {result['rate']:,} rows per second")
        y += 10
        for what, (kind, name) in TIMES.items():
            bar(picture, y, name, scale(result[what]) / most, kind, f"{result[what]:.2f} ms")
            y += BAR + GAP
        y += 24
    return str(picture.svg())


def scaling(results: list[dict[str, Any]]) -> str:
    """A bar per point: how long each is beside the first of its curve is what matters."""
    height = 20 + sum(44 + (BAR + GAP) * len(result["points"]) for result in results)
    picture = pen().Picture("How cost grows with tasks, keys, batches, channels and state", WIDTH, height)
    y = 30
    for result in results:
        picture.text(16, y, f"{CURVES[result['system']]}: {UNITS[result['system']]}")
        y += 14
        most = max(point["cost"] for point in result["points"])
        for point in result["points"]:
            bar(picture, y, point["name"], point["cost"] / most, "a", f"{point['cost']:,.2f}")
            y += BAR + GAP
        y += 30
    return str(picture.svg())


def load(results: list[dict[str, Any]]) -> str:
    """A panel per pipeline, a line per system: cores over the rate. Rates stand a factor of ten apart, with none and the flood at
    the ends."""
    points = [(each["pipeline"], result["system"], each["rate"], each["cores"]) for result in results for each in result["loads"]]
    pipelines = list(dict.fromkeys(pipeline for pipeline, *_ in points))
    rates = sorted({rate for _, _, rate, _ in points}, key=rate_of)
    systems = list(dict.fromkeys(system for _, system, _, _ in points))
    top = 50 + LEGEND * len(systems)
    picture = pen().Picture("Cores in use over the rate, of Penstock and its peers", WIDTH, top + PANEL * len(pipelines))
    for number, system in enumerate(systems):
        line = 30 + LEGEND * number
        picture.line(32, line - 5, 72, line - 5, f"{LINE_OF.get(system, 'axis')} thick")
        picture.text(84, line, NAMES[system])
    step = (WIDTH - LEFT - 60) / max(1, len(rates) - 1)
    for panel, pipeline in enumerate(pipelines):
        bottom = top + PANEL * (panel + 1) - 50
        most = max(1.0, *(cores for each, _, _, cores in points if each == pipeline))
        picture.text(16, bottom - PANEL + 90, f"{pipeline}: cores")
        for share in (0.0, 0.5, 1.0):
            y = bottom - share * (PANEL - 70)
            picture.line(LEFT, y, LEFT + step * (len(rates) - 1), y, "axis dash" if share else "axis")
            picture.text(LEFT - 50, y + 4, f"{share * most:.2f}", "quiet")
        for number, rate in enumerate(rates):
            picture.text(LEFT + step * number, bottom + 18, rate_text(rate), "quiet mid")
        for system in systems:
            at = [
                (round(LEFT + step * rates.index(rate), 1), round(bottom - cores / most * (PANEL - 70), 1))
                for each, whose, rate, cores in points
                if (each, whose) == (pipeline, system)
            ]
            kind = LINE_OF.get(system, "axis")
            for (x1, y1), (x2, y2) in pairwise(at):
                picture.line(x1, y1, x2, y2, f"{kind} thick")
            for x, y in at:
                picture.dot(x, y, kind.split()[0])
    return str(picture.svg())


def scale(milliseconds: float) -> float:
    """How long a bar is."""
    return math.log10(max(milliseconds, 0.11) / 0.1)


def bar(picture: Any, y: float, name: str, share: float, kind: str, words: str) -> None:
    """A name, a bar and what it stands for."""
    width = max(2.0, share * (WIDTH - LEFT - 110))
    picture.text(32, y + 15, name, "quiet")
    picture.box(LEFT, y, round(width, 1), BAR, kind)
    picture.text(LEFT + width + 8, y + 15, words)


@functools.cache
def pen() -> ModuleType:
    """The module that draws the guide's pictures: a script, not part of any package."""
    spec = importlib.util.spec_from_file_location("draw", ROOT / "docs" / "pictures" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
