"""What a job starts from: one decision per set of facts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from checkpoint_samples import PENDING, handle, manifest, step

from penstock.checkpoints.manifest import FieldEntry, Manifest, StateEntry
from penstock.checkpoints.restore import (
    ForkFrom,
    PipelineFacts,
    Refuse,
    RestoreFacts,
    Resume,
    StartEmpty,
    decide_restore,
)

PIPELINE = PipelineFacts(name="ads", max_parallelism=128, steps=(step(),), sources={"clicks": "files"}, sinks={"out": "files"})


def facts(newest: Manifest | None = None, *, pipeline: PipelineFacts = PIPELINE, **changes: Any) -> RestoreFacts:
    if "savepoint" in changes:
        changes = {"request": "savepoint", "path": "/saved", **changes}
    return RestoreFacts(pipeline=pipeline, newest=newest, new_lineage="fresh", **changes)


def refusal(found: RestoreFacts) -> str:
    decision = decide_restore(found)
    assert isinstance(decision, Refuse), decision
    return str(decision.error())


def test_without_checkpoints_a_job_starts_empty() -> None:
    assert decide_restore(facts()) == StartEmpty("fresh")


def test_with_checkpoints_it_goes_on_in_the_same_lineage() -> None:
    assert decide_restore(facts(manifest(5))) == Resume(manifest(5))


def test_none_starts_empty_although_there_are_checkpoints_and_settles_them_first() -> None:
    assert decide_restore(facts(manifest(5), request="none")) == StartEmpty("fresh")
    pending = manifest(5, pending=PENDING)
    assert decide_restore(facts(pending, request="none")) == StartEmpty("fresh", settle=pending)


def test_a_savepoint_begins_a_new_lineage_with_a_parent() -> None:
    newest = manifest(9, pending=PENDING)
    assert decide_restore(facts(newest, savepoint=manifest(5))) == ForkFrom(manifest(5), "fresh", ("abc123", 5), newest)


def test_an_unknown_step_is_refused_word_for_word() -> None:
    pipeline = replace(PIPELINE, steps=(step("ad-counts"), step("seen")))
    assert refusal(facts(savepoint=manifest(), pipeline=pipeline)) == (
        "the savepoint has state of step 'counts', and this pipeline has no such step. Its stateful steps: ad-counts, seen\n"
        "  Say that it was renamed, or that it was removed. "
        'Write: pen.Restore("/saved", rename={"counts": "ad-counts"}), or pen.Restore("/saved", drop=["counts"])'
    )


def test_renamed_and_dropped_steps_are_found() -> None:
    pipeline = replace(PIPELINE, steps=(step("ad-counts"),))
    decision = decide_restore(facts(savepoint=manifest(), pipeline=pipeline, rename={"counts": "ad-counts"}))
    assert isinstance(decision, ForkFrom)
    assert [entry.name for entry in decision.manifest.operators] == ["ad-counts"]
    decision = decide_restore(facts(savepoint=manifest(), pipeline=pipeline, drop=("counts",)))
    assert isinstance(decision, ForkFrom)
    assert decision.manifest.operators == ()


def test_a_renamed_state_is_found() -> None:
    old, pipeline = holding(aggregating(windows="int64")), aggregating(panes="int64")
    message = refusal(facts(savepoint=old, pipeline=pipeline))
    assert 'pen.Restore("/saved", rename={"counts.windows": "counts.panes"})' in message
    assert held(went_on(facts(savepoint=old, pipeline=pipeline, rename={"counts.windows": "counts.panes"}))) == {"panes": "int64"}
    assert held(went_on(facts(savepoint=old, pipeline=pipeline, drop=("counts.windows",)))) == {}


def test_tables_of_a_step_that_is_no_function_are_no_names() -> None:
    message = refusal(facts(savepoint=manifest(), drop=("counts.windows",)))
    assert "drop names 'counts.windows', and the savepoint has no such step. It has: counts, clicks" in message
    new = replace(PIPELINE, steps=(step(states=(StateEntry("panes", "value", (FieldEntry(1, "n", "int64", False),)),)),))
    message = refusal(facts(savepoint=manifest(), pipeline=new))
    assert "has state 'counts.windows', and step 'counts' keeps no such state now" in message
    assert 'Put it back, or start the step empty. Write: pen.Restore("/saved", drop=["counts"])' in message


def test_tables_of_a_function_that_mean_nothing_alone_are_dropped_together() -> None:
    old = aggregating(**{"a": "int64", "order-rows": "int64", "order-buckets": "int64", "order-due": "int64"})
    new = aggregating(**{"a": "int64", "order-rows": "string", "order-buckets": "int64", "order-due": "int64"})
    message = refusal(facts(savepoint=holding(old), pipeline=new))
    assert 'Put it back, or drop it. Write: pen.Restore("/saved", drop=["counts.order-rows"])' in message
    assert held(went_on(facts(savepoint=holding(old), pipeline=new, drop=("counts.order-rows",)))) == {"a": "int64"}


def test_a_state_is_renamed_with_its_step() -> None:
    old, new = aggregating(a="int64"), aggregating(b="int64")
    new = replace(new, steps=(replace(new.steps[0], name="sums"),))
    message = refusal(facts(savepoint=holding(old), pipeline=new, rename={"counts": "sums"}))
    said = {"counts": "sums", "counts.a": "sums.b"}
    assert 'rename={"counts": "sums", "counts.a": "sums.b"}' in message
    assert 'rename={"counts": "sums"}, drop=["counts.a"]' in message
    assert held(went_on(facts(savepoint=holding(old), pipeline=new, rename=said))) == {"b": "int64"}
    assert held(went_on(facts(savepoint=holding(old), pipeline=new, rename={"counts": "sums"}, drop=("counts.a",)))) == {}


def test_what_an_aggregate_keeps_is_compared_where_the_checkpoint_says_it() -> None:
    def keeping(**keeps: str) -> PipelineFacts:
        states = (StateEntry("accumulators", "value", (FieldEntry(1, "x.list", "list", True),), handles=(handle("state/a"),)),)
        return replace(PIPELINE, steps=(step(kind="aggregate", params={"keeps": keeps} if keeps else None, states=states),))

    before = holding(keeping(x="the 2 greatest values"))
    message = refusal(facts(before, pipeline=keeping(x="the 5 greatest values")))
    assert "it kept the 2 greatest values, and keeps the 5 greatest values now" in message
    for old, new in ((keeping(), keeping(x="two")), (keeping(x="two"), keeping(y="five")), (keeping(x="two"), keeping(x="two"))):
        assert isinstance(decide_restore(facts(holding(old), pipeline=new)), Resume)


# --- the same program, started again


def aggregating(**types: str) -> PipelineFacts:
    """A step that keeps a state per aggregate, each of a type."""
    states = tuple(StateEntry(name, "value", (FieldEntry(1, "n", type_, False),)) for name, type_ in types.items())
    return replace(PIPELINE, steps=(step(states=states, kind="process"),))


def holding(pipeline: PipelineFacts, **changes: Any) -> Manifest:
    return manifest(5, operators=pipeline.steps, **changes)


def went_on(found: RestoreFacts) -> Manifest:
    decision = decide_restore(found)
    assert isinstance(decision, Resume | ForkFrom), decision
    return decision.manifest


def held(found: Manifest) -> dict[str, str]:
    return {state.name: state.schema[0].type for state in found.operators[0].states}


def after(found: Manifest, pipeline: PipelineFacts) -> Manifest:
    """The next checkpoint: all that the program keeps."""
    return replace(found, epoch=found.epoch + 1, operators=pipeline.steps)


SWAP = {"rename": {"counts.a": "counts.b", "counts.b": "counts.a"}}


def test_names_that_were_swapped_are_not_swapped_back_by_the_next_start() -> None:
    pipeline = aggregating(a="int64", b="int64")
    first = went_on(facts(holding(pipeline), pipeline=pipeline, **SWAP))
    assert [state.name for state in first.operators[0].states] == ["b", "a"]
    again = decide_restore(facts(after(first, pipeline), pipeline=pipeline, **SWAP))
    assert isinstance(again, Resume)
    assert [state.name for state in again.manifest.operators[0].states] == ["a", "b"]
    assert [each.text() for each in again.done] == [
        "rename counts.a to counts.b, from epoch 5 on",
        "rename counts.b to counts.a, from epoch 5 on",
    ]


def test_a_name_that_the_program_has_again_is_dropped_once() -> None:
    old, new = aggregating(a="int64", b="int64"), aggregating(a="string", b="int64")
    first = went_on(facts(holding(old), pipeline=new, drop=("counts.a",)))
    assert held(first) == {"b": "int64"}
    assert held(went_on(facts(after(first, new), pipeline=new, drop=("counts.a",)))) == {"a": "string", "b": "int64"}


def test_what_was_said_is_done_again_if_no_checkpoint_has_followed() -> None:
    old, new = aggregating(a="int64", b="int64"), aggregating(a="string", b="int64")
    for _ in range(2):
        assert held(went_on(facts(holding(old), pipeline=new, drop=("counts.a",)))) == {"b": "int64"}


def test_the_same_words_for_a_later_change_are_done_again_and_no_others() -> None:
    first, second = aggregating(a="string", b="int64", c="int64"), aggregating(a="bool", b="int64", c="int64")
    said: dict[str, Any] = {"drop": ("counts.a",), "rename": {"counts.b": "counts.c", "counts.c": "counts.b"}}
    stored = aggregating(a="int64", b="int64", c="int64")
    found = after(went_on(facts(holding(stored), pipeline=first, **said)), first)
    changed = went_on(facts(found, pipeline=second, **said))
    assert [state.name for state in changed.operators[0].states] == ["b", "c"], "dropped, and not swapped back"
    assert {each.name: each.epoch for each in changed.applied} == {"counts.a": 6, "counts.b": 5, "counts.c": 5}
    assert held(went_on(facts(after(changed, second), pipeline=second, **said))) == held(holding(second))


def test_a_step_that_was_dropped_once_is_not_dropped_for_another_reason() -> None:
    old, new = aggregating(a="int64", b="int64"), aggregating(a="int64", c="int64")
    first = after(went_on(facts(holding(old), pipeline=old, drop=("counts",))), old)
    message = refusal(facts(first, pipeline=new, drop=("counts",)))
    assert "has state 'counts.b', and step 'counts' keeps no such state now" in message
    gone = replace(new, steps=(step("totals"),))
    assert went_on(facts(first, pipeline=gone, drop=("counts",))).operators == ()


def test_names_that_are_swapped_once_more_in_the_same_words_are_swapped() -> None:
    old, new = aggregating(a="int64", b="string"), aggregating(a="string", b="int64")
    first = after(went_on(facts(holding(old), pipeline=new, **SWAP)), new)
    assert held(went_on(facts(first, pipeline=old, **SWAP))) == {"b": "string", "a": "int64"}


def test_what_was_done_does_not_count_as_a_mistake_later() -> None:
    old, new = aggregating(a="int64", b="int64"), aggregating(b="int64")
    first = after(went_on(facts(holding(old), pipeline=new, drop=("counts.a",))), new)
    message = refusal(facts(first, pipeline=aggregating(c="int64"), drop=("counts.a",)))
    assert message.startswith("the newest checkpoint has state 'counts.b'")
    assert 'Write: pen.Restore("latest", rename={"counts.b": "counts.c"})' in message


def test_from_a_savepoint_all_that_is_said_is_done_and_then_known_in_the_new_lineage() -> None:
    pipeline = aggregating(a="int64", b="int64")
    swapped = after(went_on(facts(holding(pipeline), pipeline=pipeline, **SWAP)), pipeline)
    without = went_on(facts(savepoint=swapped, pipeline=pipeline))
    assert [state.name for state in without.operators[0].states] == ["a", "b"]
    assert [state.name for state in went_on(facts(without, pipeline=pipeline, **SWAP)).operators[0].states] == ["a", "b"]
    anew = went_on(facts(savepoint=swapped, pipeline=pipeline, **SWAP))
    assert [state.name for state in anew.operators[0].states] == ["b", "a"]
    assert [each.epoch for each in anew.applied] == [6, 6]


def test_what_is_said_to_a_job_without_a_checkpoint_is_not_done_at_its_second_start() -> None:
    pipeline = aggregating(a="int64")
    begun = decide_restore(facts(pipeline=pipeline, drop=("counts.a",)))
    assert isinstance(begun, StartEmpty)
    found = went_on(facts(holding(pipeline, applied=begun.applied), pipeline=pipeline, drop=("counts.a",)))
    assert held(found) == {"a": "int64"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rename": {"cuonts": "counts"}}, 'rename names \'cuonts\'[^$]*rename={"counts": "counts"}'),
        ({"drop": ("nothing",)}, "drop names 'nothing'"),
        ({"rename": {"counts": "missing"}}, "is now 'missing', and this pipeline has no such step"),
        ({"rename": {"counts": "counts"}, "drop": ("counts",)}, "both renamed and dropped"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, Any], text: str) -> None:
    assert re.search(text, refusal(facts(savepoint=manifest(), **options)))


def test_two_steps_cannot_become_one() -> None:
    both = manifest(operators=(step("a"), step("counts")))
    assert "twice" in refusal(facts(savepoint=both, rename={"a": "counts"}))


CHANGED = [
    ({"keys": (("user", "string"),)}, "was keyed by ad (string) in the savepoint and is keyed by user (string) now"),
    ({"keys": (("ad", "int64"),)}, "keyed by ad (int64) now"),
    ({"params": {"size_us": 5}}, "had size_us=10000000 in the savepoint and has size_us=5 now"),
    ({"params": {"size_us": 10_000_000, "slide_us": 1}}, "had no slide_us in the savepoint and has slide_us=1 now"),
    ({"kind": "join"}, "was a window in the savepoint and is a join now"),
    ({"version": 2}, "state of version 1, and this Penstock writes 2"),
    ({"states": (StateEntry("windows", "list", (FieldEntry(1, "n", "int64", False),)),)}, "was a value"),
    ({"states": (StateEntry("windows", "value", (FieldEntry(1, "n", "int32", False),)),)}, "(n int64 not null)"),
    ({"states": (StateEntry("windows", "value", (FieldEntry(1, "n", "int64", False),), changes="retract"),)}, "retract rows now"),
]


@pytest.mark.parametrize(("change", "text"), CHANGED)
def test_a_step_whose_state_would_be_misread_is_refused_with_a_fix(change: dict[str, Any], text: str) -> None:
    message = refusal(facts(savepoint=manifest(), pipeline=replace(PIPELINE, steps=(step(**change),))))
    assert text in message
    assert 'pen.Restore("/saved", drop=[' in message


def test_state_of_a_later_version_needs_a_later_penstock() -> None:
    assert "Use a later version" in refusal(facts(manifest(operators=(step(version=9),))))


def test_another_max_parallelism_is_refused_with_the_line_to_write() -> None:
    message = refusal(facts(manifest(), pipeline=replace(PIPELINE, max_parallelism=64)))
    assert "the newest checkpoint was made with max_parallelism=128, and this pipeline has 64" in message
    assert 'pen.Pipeline("ads", max_parallelism=128)' in message


def test_another_hash_is_refused() -> None:
    assert "divides keys by 'old'" in refusal(facts(manifest(hash_id="old")))


def test_a_savepoint_of_another_pipeline_is_refused_and_one_of_a_renamed_pipeline_is_not() -> None:
    other = PipelineFacts(name="fraud", max_parallelism=128, steps=(step("limits"),), sources={"payments": "files"})
    assert "is of pipeline 'ads', and this is 'fraud': no step or source has the same name" in refusal(
        facts(savepoint=manifest(), pipeline=other)
    )
    assert isinstance(decide_restore(facts(savepoint=manifest(), pipeline=replace(PIPELINE, name="ads2"))), ForkFrom)


def test_a_finished_checkpoint_whose_end_closed_nothing_goes_on() -> None:
    done, open_ended = manifest(5, finished=True), replace(PIPELINE, closes=False)
    resumed = decide_restore(facts(done, pipeline=open_ended))
    assert isinstance(resumed, Resume)
    assert not resumed.manifest.finished
    assert all(not split.ended for source in resumed.manifest.sources for split in source.splits.values())
    forked = decide_restore(facts(savepoint=done, pipeline=open_ended))
    assert isinstance(forked, ForkFrom)
    assert forked.parent == ("abc123", 5)
    assert not forked.manifest.finished
    pending = manifest(5, finished=True, pending=PENDING)
    again = decide_restore(facts(pending, pipeline=open_ended))
    assert isinstance(again, Resume)
    assert again.manifest.pending == pending.pending
    assert decide_restore(facts(manifest(5), pipeline=open_ended)) == Resume(manifest(5)), "as it was, if it had not finished"


def test_a_finished_checkpoint_is_refused_unless_time_starts_over() -> None:
    done = manifest(5, finished=True)
    message = refusal(facts(done))
    assert "is finished" in message
    assert 'restore="none"' in message
    assert 'pen.Restore("latest", start_over_time=True)' in message
    decision = decide_restore(facts(done, start_over_time=True))
    assert isinstance(decision, Resume)
    assert not decision.manifest.finished
    assert decision.manifest.operators[0].watermarks == ()
    assert decision.manifest.operators[0].states[0].floors == ()
    assert decision.manifest.sources[0].splits["0"].watermark is None
    assert decision.manifest.sources[0].splits["0"].position == {"file": "a.csv", "row": 3}


def test_a_removed_or_changed_source_is_refused() -> None:
    gone = replace(PIPELINE, sources={"views": "files"})
    message = refusal(facts(savepoint=manifest(), pipeline=gone))
    assert "the savepoint has positions of source 'clicks', and this pipeline has no such source. Its sources: views" in message
    assert 'rename={"clicks": "views"}' in message
    changed = replace(PIPELINE, sources={"clicks": "kafka"})
    assert "source 'clicks' was 'files' in the savepoint and is 'kafka' now" in refusal(
        facts(savepoint=manifest(), pipeline=changed)
    )
    dropped = facts(savepoint=manifest(), pipeline=changed, drop=("clicks",))
    assert isinstance(decide_restore(dropped), ForkFrom)


def test_added_steps_and_sources_start_empty() -> None:
    more = replace(PIPELINE, steps=(step(), step("new")), sources={"clicks": "files", "views": "files"})
    assert decide_restore(facts(manifest(), pipeline=more)) == Resume(manifest())


def test_a_sink_cannot_be_removed_while_its_rows_are_unconfirmed() -> None:
    without = replace(PIPELINE, sinks={})
    for request in ("latest", "none"):
        assert "sink 'out' are not confirmed" in refusal(facts(manifest(pending=PENDING), pipeline=without, request=request))
    assert isinstance(decide_restore(facts(manifest(), pipeline=without)), Resume)
