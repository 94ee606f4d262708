"""The examples do what they say, with the runner that needs no Spark."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock as pen
from penstock.connectors import socket as socket_source
from penstock.connectors.adevents import ad_events, campaign_of

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def served() -> Iterator[int]:
    """A server on a free port that sends a few lines to whoever connects, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for line in ("to be or not to be", "", "that is the question", "to sleep"):
                    connection.sendall(line.encode() + b"\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(5)


def test_words_from_a_socket_are_counted(
    served: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = socket_source.socket
    monkeypatch.setattr(socket_source, "socket", lambda host, port, **options: real(host, served, **options))
    load("word_count").pipeline.run(pen.Local(snapshot_every="100ms"))
    counts: dict[str, int] = {}
    for line in capsys.readouterr().out.splitlines():
        cells = [cell.strip() for cell in line.replace("┃", "│").split("│") if cell.strip()]
        if len(cells) == 2 and cells[1].isdigit():
            counts[cells[0]] = int(cells[1])  # a later line of a word replaces an earlier one
    assert counts == Counter(["to", "be", "or", "not", "to", "be", "that", "is", "the", "question", "to", "sleep"])


def views(indexes: Any) -> Counter[tuple[str, int]]:
    made = {name: column.to_pylist() for name, column in ad_events(indexes, 0, ["ad_id", "event_type", "at"]).items()}
    return Counter(
        (campaign_of(ad), int(at.timestamp()) // 10 * 10)
        for ad, kind, at in zip(made["ad_id"], made["event_type"], made["at"], strict=True)
        if kind == "view"
    )


def committed(out: Path) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for file in out.glob("epoch=*/part-*"):
        for row in pq.ParquetFile(file).read().to_pylist():
            key = row["campaign_id"], int(row["window_start"].timestamp())
            assert key not in found
            found[key] = row["views"]
    return found


def test_the_hot_items_of_the_last_hour_are_those_with_the_most_bids(tmp_path: Path) -> None:
    example = load("hot_items")
    rows = 50_000
    example.pipeline(rows=rows, out=str(tmp_path / "out")).run(pen.Local(parallelism=2))
    made = {name: column.to_pylist() for name, column in example.bids(np.arange(rows), 0).items()}
    minutes = Counter((int(at.timestamp()) // 60, item) for item, at in zip(made["item"], made["at"], strict=True))
    counts: dict[int, Counter[int]] = {}
    for (minute, item), n in minutes.items():
        for end in range(minute + 1, minute + 61):
            counts.setdefault(end, Counter())[item] += n
    expected = {
        (end, rank + 1): pair
        for end, found in counts.items()
        for rank, pair in enumerate(sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))[:3])
    }
    sent = [json.loads(line) for file in (tmp_path / "out").glob("epoch=*/part-*") for line in file.read_text().splitlines()]
    assert len(sent) == len(expected)
    ends = [int(datetime.fromisoformat(row["window_end"]).timestamp()) // 60 for row in sent]
    assert {(end, row["rank"]): (row["item"], row["bids"]) for end, row in zip(ends, sent, strict=True)} == expected


def test_ads_are_counted(tmp_path: Path) -> None:
    load("ad_counts").pipeline(rows=30_000, out=str(tmp_path / "out")).run(pen.Local(parallelism=2))
    assert committed(tmp_path / "out") == views(np.arange(30_000))


def test_ads_in_files_are_counted(tmp_path: Path) -> None:
    made = ad_events(np.arange(2_000), 0)
    (tmp_path / "in").mkdir()
    with open(tmp_path / "in" / "a.json", "w") as file:
        for index in range(2_000):
            row = {name: column[index].as_py() for name, column in made.items()}
            file.write(json.dumps({**row, "at": row["at"].isoformat()}) + "\n")
        file.write(json.dumps({"ad_id": "unknown", "event_type": "view", "at": row["at"].isoformat()}) + "\n")
    load("ad_counts").pipeline(files=str(tmp_path / "in" / "*.json"), out=str(tmp_path / "out")).run(pen.Local())
    assert committed(tmp_path / "out") == views(np.arange(2_000))
