"""Golden checkpoints as they lie in their folders, and how what a restored job committed is read."""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from conformance.oracle import by_epoch, micros
from golden.checkpoints import answers

HERE = Path(__file__).parent
COMMITS = tuple(sorted(folder.name for folder in HERE.iterdir() if (folder / "windows.json").exists()))
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*")

Rows = list[dict[str, Any]]


def unpack(commit: str, name: str, folder: Path) -> dict[str, Any]:
    """The archive of a golden checkpoint into a folder; its input and the expected answer."""
    with tarfile.open(HERE / commit / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    told: dict[str, Any] = json.loads((HERE / commit / f"{name}.json").read_text())
    return told


def has_savepoint(commit: str, name: str) -> bool:
    with tarfile.open(HERE / commit / f"{name}.tar.gz") as archive:
        return "savepoint/savepoint.json" in archive.getnames()


def check(out: Path, expected: dict[str, Any]) -> None:
    """What was committed under `out` is what is expected."""
    wrong = []
    for folder in expected:
        wanted = expected[folder]
        found = standing(by_epoch(str(out / folder)), wanted["how"], wanted["keys"])
        names = sorted({name for row in wanted["rows"] for name in row})
        difference = compared(shown(found, names), shown(wanted["rows"], names))
        wrong += [f"{folder}: {difference}"] if difference else []
    assert not wrong, "\n".join(wrong)


def standing(rows: Rows, how: str, keys: list[str]) -> Rows:
    """The rows that count in the end: see `answers`."""
    if how == "rows":
        assert all(row.get("change", 1) == 1 for row in rows), "a row was withdrawn"
        return rows
    if how == "latest":
        kept: dict[Any, Any] = {}
        for row in rows:
            key = tuple(row[k] for k in keys)
            if row["change"] < 0:
                kept.pop(key, None)
            else:
                kept[key] = row
        return list(kept.values())
    if how == "net":
        total: Counter[str] = Counter()
        for row in rows:
            total[json.dumps({**row, "change": 1}, sort_keys=True)] += row["change"]
        assert set(total.values()) <= {0, 1}, "a row was withdrawn that was not there, or sent twice"
        return [json.loads(text) for text, n in total.items() if n]
    if how == "clocked":
        keys = [*keys, "cut"]
        rows = [{**row, "cut": "before" if micros(row["window_start"]) == answers.CLOCK_US else "after"} for row in rows]
    parts: dict[Any, Any] = defaultdict(lambda: {"n": 0, "total": None})
    for row in rows:
        part = parts[tuple(row[k] for k in keys)]
        part["n"] += row["n"]
        if row.get("total") is not None:
            part["total"] = row["total"] + (part["total"] or 0)
    return [{**dict(zip(keys, key)), **part} for key, part in parts.items()]


def shown(rows: Rows, names: list[str]) -> Counter[str]:
    """Rows that can be compared: columns by name, times as numbers, ids sorted, floats without
    their last digits, and whole ones as integers: JSON makes no difference."""
    return Counter(json.dumps({name: plain(row.get(name), name) for name in names}, sort_keys=True) for row in rows)


def plain(value: Any, name: str = "") -> Any:
    if isinstance(value, str) and TIME.fullmatch(value):
        return micros(value)
    if isinstance(value, str) and name == "spent":
        value = float(value)
    if isinstance(value, float):
        rounded = float(f"{value:.9g}")
        return int(rounded) if rounded.is_integer() else rounded
    if isinstance(value, list):
        return sorted(value) if name == "ids" else [plain(item) for item in value]
    return value


def compared(found: Counter[str], expected: Counter[str]) -> str:
    """What differs, in a few lines; nothing if nothing does."""
    missing, extra = list((expected - found).elements()), list((found - expected).elements())
    if not missing and not extra:
        return ""
    first = "\n  ".join([f"missing {row}" for row in sorted(missing)[:2]] + [f"extra   {row}" for row in sorted(extra)[:2]])
    return f"{found.total()} rows, expected {expected.total()}; {len(missing)} missing, {len(extra)} too many\n  {first}"
