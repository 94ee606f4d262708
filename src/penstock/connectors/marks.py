"""Marks: small files of JSON by which a sink knows after a crash what it has already done.

    {"epoch": 7, "last": 7, "lineage": "9b1e", "xxh64": "4c0f…"}

A mark that is wrong by one bit would hide rows or show them twice, so each carries a checksum of its own content: `read_mark`
raises CorruptError naming the file, or returns what was written. Marks of earlier versions have no checksum, and are read as
they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from penstock.connectors.durable import write_file
from penstock.errors import CorruptError

__all__ = ["read_mark", "write_mark"]

CHECKSUM = "xxh64"


def write_mark(path: Path, content: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Put a mark at `path`, whole or not at all."""
    assert CHECKSUM not in content, "the name is taken"
    text = json.dumps({**content, CHECKSUM: _checksum(content)}, indent=indent, sort_keys=True)
    write_file(path, text.encode())


def read_mark(path: Path, kinds: Mapping[str, type]) -> dict[str, Any] | None:
    """What the mark at `path` says, without its checksum; None if there is none. `kinds`: its fields."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise CorruptError(f"{path} is damaged: expected an object")
    told = found.pop(CHECKSUM, None)
    if set(found) != set(kinds) or not all(type(found[name]) is kind for name, kind in kinds.items()):
        raise CorruptError(
            f"{path} is damaged: expected {', '.join(kinds)} and a checksum, found {', '.join(map(str, found)) or 'nothing'}"
        )
    if told is not None and told != _checksum(found):
        raise CorruptError(f"{path} is damaged: its checksum is {str(told)[:40]!r}, and its content needs {_checksum(found)!r}")
    return found


def _checksum(content: Mapping[str, Any]) -> str:
    return str(xxhash.xxh64_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()))
