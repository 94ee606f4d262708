"""Options of runners: one word everywhere, and what is said closest to the run wins.

Order: runner argument (or flag), then environment (`PENSTOCK_SNAPSHOT_EVERY`), then `penstock.toml` (`[pipeline.NAME]` before
`[defaults]`), then the default.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, PlanError
from penstock.eventtime import duration_text, micros
from penstock.state.backend import Backend, backend_of

DEFAULTS: dict[str, Any] = {
    "parallelism": None,
    "storage": None,
    "keep": 3,
    "snapshot_every": "1s",
    "guarantee": "exactly-once",
    "state": "columnar",
    "restarts": 10,
    "backoff": "1s",
    "latency": "5ms",
    "watermark_every": "20ms",
    "unaligned_after": "10s",
    "finish": True,
}
DURATIONS = ("snapshot_every", "backoff", "latency", "watermark_every", "unaligned_after")
NEVER = "never"  # unaligned_after: an aligned snapshot is waited for, however long it takes
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
COUNTS = ("parallelism", "keep", "restarts")


@dataclass(frozen=True, slots=True)
class Options:
    """What a run was told, resolved. Durations are in microseconds."""

    parallelism: int | None
    storage: str | None
    keep: int
    snapshot_every: int
    guarantee: str
    state: Backend
    restarts: int
    backoff: int
    latency: int
    watermark_every: int
    unaligned_after: int | None  # None: never
    finish: bool  # False: stop when sources have nothing more now, and close no window
    origins: Mapping[str, str]

    def describe(self) -> dict[str, str]:
        """Each value with where it comes from."""
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "origins"}
        shown["unaligned_after"] = NEVER if self.unaligned_after is None else self.unaligned_after
        texts = {
            name: duration_text(value) if name in DURATIONS and value != NEVER else str(value) for name, value in shown.items()
        }
        return {name: f"{text}  ({self.origins[name]})" for name, text in texts.items()}


def resolve(
    pipeline: str,
    given: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    file: Path = Path("penstock.toml"),
) -> Options:
    """The options of a run of `pipeline`: `given` are the runner's arguments, None where nothing was said."""
    environ = os.environ if environ is None else environ
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise ConfigError(f"there is no option {unknown[0]!r}. Options: {', '.join(DEFAULTS)}")
    tables = read_file(file, pipeline)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, default in DEFAULTS.items():
        variable = f"PENSTOCK_{name.upper()}"
        ladder = [
            ("argument", given.get(name)),
            (variable, environ.get(variable)),
            *((where, t.get(name)) for where, t in tables),
        ]
        origin, value = next(((where, found) for where, found in ladder if found is not None), ("default", default))
        values[name], origins[name] = checked(name, value, origin), origin
    return Options(**values, origins=origins)


def read_file(file: Path, pipeline: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables of penstock.toml that matter here, nearest first."""
    if not file.exists():
        return []
    try:
        content = tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    tables = [
        (f"{file.name} [pipeline.{pipeline}]", content.get("pipeline", {}).get(pipeline, {})),
        (f"{file.name} [defaults]", content.get("defaults", {})),
    ]
    for where, table in tables:
        unknown = sorted(set(table) - set(DEFAULTS))
        if unknown:
            raise ConfigError(f"{where} has no option {unknown[0]!r}. Options: {', '.join(DEFAULTS)}")
    return tables


def checked(name: str, value: Any, origin: str) -> Any:
    """The value in its own type, or an error that names where it came from."""
    if value is None:
        return None
    try:
        if name == "unaligned_after" and value == NEVER:
            return None
        if name in DURATIONS:
            duration = micros(value, name)
            if duration < 0 or (duration == 0 and name != "unaligned_after"):
                raise ConfigError(f"{name}={value!r} ({origin}) must be more than nothing")
            return duration
        if name in COUNTS:
            count = int(value)
            least = 0 if name == "restarts" else 1
            if count < least or str(count) != str(value):
                raise ConfigError(f"{name}={value!r} ({origin}) is not a whole number of {least} or more")
            return count
        if name == "finish":
            if str(value).lower() not in WORDS:
                raise ConfigError(f"finish={value!r} ({origin}) is neither true nor false")
            return WORDS[str(value).lower()]
        if name == "state":
            return backend_of(value, origin)
        if name == "guarantee" and value != "exactly-once":
            raise ConfigError(f'guarantee={value!r} ({origin}) is not known yet. It is "exactly-once"')
        return str(value)
    except PlanError as error:
        raise ConfigError(f"{error.message} ({origin})", fix=error.fix) from None
    except ValueError:
        raise ConfigError(f"{name}={value!r} ({origin}) is not a whole number") from None
