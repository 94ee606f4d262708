"""What to write where rows of a stream replace earlier ones, and the next step would count both.

It is the step that sends such rows that must be written in another way, and what helps depends on both: an aggregate can take back
what was withdrawn, and whatever else remembers rows needs each of them sent once.
"""

from __future__ import annotations

from penstock.errors import Fix
from penstock.plan.logical import Node
from penstock.windows import Running

__all__ = ["of_updates"]


def of_updates(input: Node, verb: str, *, takes_back: bool, windowed: bool = True) -> Fix:
    """How the step before is written, so that this one can take its rows.

    Args:
        takes_back: whether this step can take rows back.
        windowed: whether it goes by windows, or may as well do without.
    """
    maker = _maker(input)
    if maker.kind == "process":
        return Fix("keyed.of-states", "Each row that was sent can count, also those replaced. Write: .as_rows()")
    time = ""
    if not any(node.timed for node in maker.inputs):
        time = ' Windows need event time, .with_watermark("at", delay="5s") right after read.'
    if maker.kind == "top":
        return Fix("keyed.of-top", f'The top of windows is sent once, when they close.{time} Write: .window(pen.tumbling("1h"))')
    if not isinstance(getattr(maker, "window", Running()), Running):
        if takes_back:
            return Fix("keyed.of-early-results", 'Let the step before withdraw what it replaces. Write: emit="retract"')
        trigger = ", and leave trigger= out there" if getattr(maker, "trigger", None) is not None else ""
        return Fix("keyed.of-early-rows", f'Let the step before send each result once{trigger}. Write: emit="append"')
    if takes_back:
        return Fix(
            "keyed.of-updates", 'Let the step before withdraw what it replaces. Write: .window(pen.running(), emit="retract")'
        )
    both = "in the step before" if windowed else "in the step before, and in this one"
    return Fix(
        "keyed.of-running",
        f"{verb} needs rows that are sent once, as those of windows are when they close. Have windows {both}.{time}"
        ' Write: .window(pen.tumbling("1h"))',
    )


def _maker(node: Node) -> Node:
    """The step whose rows replace earlier ones; what comes behind it, such as a filter, hands them on."""
    before = next((input for input in node.inputs if input.changes == "update"), None)
    return node if before is None else _maker(before)
