"""From a transcript to a pipeline: what a user would write."""

from __future__ import annotations

from dataclasses import dataclass

import penstock as pen
from penstock.connectors.connector import Sink, Source
from transcripts.script import Transcript


@dataclass(frozen=True)
class Result:
    """What the judge must know of the result: how rows relate to earlier ones."""

    changes: str  # append, update or retract
    keys: tuple[str, ...]


def read(p: pen.Pipeline, source: Source) -> pen.Stream:
    """The rows of a script, with its time."""
    return p.read(source).with_watermark("at", punctuated="reached").filter("mark = 0").select("k", "v", "at")


def build(stream: pen.Stream, transcript: Transcript, out: Sink, late: Sink) -> Result:
    """The windows of a transcript; `late` gets the late rows, if the transcript is about them."""
    for number, window in enumerate(transcript.windows):
        positional, named = window.given
        keyed = stream.key_by(*window.key) if window.key else stream
        stream = keyed.window(*positional, **named).aggregate(name=f"{transcript.slug}-{number}", **window.aggregate)
        if number == 0 and transcript.late is not None:
            stream.late.select("k", "at", "v").write(late, name=f"{transcript.slug}-late")
    if transcript.panes:
        stream = stream.with_columns(**{what: pen.pane(what) for what in transcript.panes})
    node = stream._node
    stream.write(out, name=f"{transcript.slug}-out")
    names = {"window_start": "start", "window_end": "end"}
    return Result(node.changes, tuple(names.get(key, key) for key in node.keys))
