"""Every schedule of the small scopes, counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol import coordinator as co
from penstock.protocol.terms import Record
from penstock.testing.explorer import FULL, SCOPES, Numbers, Report, explore, main, never_hit
from penstock.testing.parts import CODEC, Manifest, Scope, Violation, parse
from penstock.testing.world import World, check_cut

COUNTS = {
    "plain": (19_308, 48_307, 51),
    "crash": (83_497, 204_438, 63),
    "late": (88_089, 245_812, 65),
    "zombie": (206_682, 563_760, 70),
    "hiccup": (48_027, 116_132, 56),
    "rerun": (17_644, 55_305, 62),
    "overdue": (59_828, 136_639, 64),
    "overdue crash": (31_816, 76_013, 62),
    "overdue zombie": (31_603, 72_970, 65),
    "overdue hiccup": (53_075, 129_208, 57),
}
"""States, transitions and depth by scope. A change in a count is a change of behaviour: explain it where you change it."""

IMPOSSIBLE = {
    ("Source free, ended", "SourcesEnded"),  # a source ends once
    *(
        (f"Target {state}, ended", event)
        for state in ("free", "aligning", "recording")
        for event in ("Batch", "Watermark", "End")
    ),
    *(
        (f"Target {state}", "Overtook") for state in ("free", "aligning", "free, ended", "aligning, ended")
    ),  # only what is recorded
    *((f"Coordinator {phase.value}", "Booted") for phase in co.Phase if phase is not co.Phase.RECOVERING),
}
"""Pairs that cannot happen."""

NOT_MODELLED = ("Idle", "InputEnded", "Drained", "CommitFailed", "StopAsked", "SavepointAsked")
"""Events the world never makes: unit tests have them."""


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return {scope.name: explore(scope) for scope in SCOPES}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COUNTS))
def test_no_schedule_violates_an_invariant(reports: dict[str, Report], name: str) -> None:
    report = reports[name]
    assert report.found is None, str(report.found)
    assert (report.states, report.transitions, report.depth) == COUNTS[name]


@pytest.mark.slow
def test_the_pairs_of_state_and_event_that_are_never_reached_are_known(reports: dict[str, Report]) -> None:
    hits = {pair for report in reports.values() for pair in report.hits}
    missed = {pair for pair in never_hit(hits) if pair not in IMPOSSIBLE and pair[1] not in NOT_MODELLED}
    assert missed == {
        # There is no attempt to hear of.
        ("Coordinator recovering", "Running"),
        ("Coordinator recovering", "Declined"),
        ("Coordinator recovering", "AttemptFailed"),
        # Nothing is being published, or the answer would have to come first (rule 5 of the coordinator).
        ("Coordinator recovering", "Published"),
        ("Coordinator recovering", "PublishFailed"),
        ("Coordinator recovering", "Superseded"),
        ("Coordinator waiting", "Published"),
        ("Coordinator waiting", "PublishFailed"),
        ("Coordinator waiting", "Superseded"),
        ("Coordinator starting", "Published"),
        ("Coordinator starting", "PublishFailed"),
        ("Coordinator starting", "Superseded"),
        ("Coordinator starting", "Committed"),
        ("Coordinator starting", "CommitDelayed"),
        # A dead worker is reported once, and an attempt's acknowledgements end with it.
        ("Coordinator waiting", "Declined"),
        ("Coordinator waiting", "AttemptFailed"),
        ("Coordinator starting", "Declined"),
        ("Coordinator running", "Running"),
        # Who has ended waits for barriers; and only after an abort (two overdue epochs: `--full` has it) is one overdue while
        # another is recorded.
        *((f"Target {state}, ended", "Overdue") for state in ("free", "aligning", "recording")),
        ("Target recording", "Overdue"),
        # A tick is made only where it is due, and who has halted is told little.
        ("Coordinator recovering", "Ticked"),
        ("Coordinator starting", "Ticked"),
        *(
            ("Coordinator halted", name)
            for name in ("Running", "Ticked", "Declined", "Published", "PublishFailed", "Superseded", "CommitDelayed")
        ),
    }


def test_scopes_have_names_of_their_own() -> None:
    assert len({scope.name for scope in FULL}) == len(FULL)


def test_exploring_twice_gives_the_same_numbers() -> None:
    scope = Scope("tiny", rows=(1, 0), epochs=1)
    first, second = explore(scope), explore(scope)
    assert first.found is None
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, second.depth)


def test_going_deep_visits_the_same_states() -> None:
    scope = Scope("tiny", rows=(1, 0), epochs=2)
    assert explore(scope).states == explore(scope, deep=True).states


def outcomes(scope: Scope) -> set[object]:
    """What is published and what is committed, in every state that can be reached."""
    found, numbers = set(), Numbers()
    first = World(scope)
    seen, frontier = {first.key(numbers)}, [first]
    while frontier:
        world = frontier.pop()
        found.add((world.truth, world.sink, world.finished))
        for _, after in world.successors():
            key = after.key(numbers)
            if key not in seen:
                seen.add(key)
                frontier.append(after)
    return found


@pytest.mark.parametrize(
    "scope",
    [
        Scope("crash", rows=(1, 0), epochs=2, crashes=1),
        Scope("zombie", rows=(0, 0), epochs=2, zombies=1),
        Scope("overdue", rows=(1, 0), epochs=2, overdue=1),
    ],
    ids=lambda scope: scope.name,
)
def test_letting_steps_that_commute_go_first_loses_no_outcome(scope: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = outcomes(scope)
    monkeypatch.setattr(World, "_eager", lambda self: [])
    assert outcomes(scope) == reduced


def test_a_violation_is_reported_as_the_choices_that_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def show(self: World, pending: co.Pending) -> None:
        raise Violation("commit", "never")

    monkeypatch.setattr(World, "show", show)
    found = explore(Scope("tiny", rows=(1, 0), epochs=1)).found
    assert found is not None
    assert found.invariant == "commit"
    assert found.choices[-1] == "coordinator 1 commits epoch 1"
    at, world = 0, World(Scope("tiny", rows=(1, 0), epochs=1))
    for choice in found.choices[:-1]:
        world = next(after for name, after in world.successors() if name == choice)
        at += 1
    assert at == len(found.choices) - 1, "the choices can be replayed"
    assert "commit violated after" in str(found)


def test_a_cut_that_is_not_consistent_is_noticed() -> None:
    good = Manifest(1, (1, 0), ((((0, 1),), 1),), (co.Pending(1, "out", ((0, 1),)),), False)
    check_cut((good,))
    for bad in (
        Manifest(1, (1, 0), (((), 1),), good.pending, False),
        Manifest(1, (0, 0), good.states, good.pending, False),
        Manifest(1, (1, 0), good.states, (), False),
        Manifest(1, (1, 0), ((((0, 1), (0, 1)), 1),), good.pending, False),
    ):
        with pytest.raises(Violation, match="cut"):
            check_cut((bad,))


def test_rows_in_flight_belong_to_the_cut_once_and_in_their_order() -> None:
    sent = ((0, 1), (0, 2))
    check_cut((Manifest(1, (2, 0), (((), 0),), (), False, (sent,)),))
    seen = Manifest(1, (2, 0), ((((0, 1),), 0),), (co.Pending(1, "out", ((0, 1),)),), False, (((0, 2),),))
    check_cut((seen,))
    for bad in (
        replace(seen, in_flight=((),)),
        replace(seen, in_flight=(((0, 2), (0, 2)),)),
        replace(seen, in_flight=(sent,)),
        Manifest(1, (2, 0), (((), 0),), (), False, (sent[::-1],)),
    ):
        with pytest.raises(Violation, match="cut"):
            check_cut((bad,))


def test_manifests_and_records_survive_writing() -> None:
    manifest = Manifest(2, (1, 0), ((((0, 1),), 1),), (co.Pending(1, "out", ((0, 1),)), co.Pending(2, "out", ())), True)
    assert parse(manifest.to_text()) == manifest
    unaligned = replace(manifest, in_flight=(((1, 1), (0, 2)), ()))
    assert parse(unaligned.to_text()) == unaligned
    record = Record(3, 1, "checkpoint", manifest.to_text(), "abc")
    assert CODEC.decode(CODEC.encode(record), "here") == record


def test_the_command_prints_what_was_explored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scope", "rerun"]) == 0
    shown = capsys.readouterr().out
    assert "17,644 states" in shown
    assert "never hit:" in shown
