"""SQL means what Spark says it means: each form of each function, operator and cast, on random and on nasty rows.

A form is compared on rows that raise on neither side, value by value with types and nulls, and on rows that raise, each of
which both must refuse. Which rows raise in Spark is asked row by row (see `comparing`). PENSTOCK_DIFFERENTIAL=full makes it
2,000 rows of every form and 20 that raise, where otherwise it is 200 and 5 of a third of the forms, and of at least one for each
entry; PENSTOCK_SEED=7 makes other ones.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from differential.aggregates import aggregates, compared
from differential.comparing import CHUNK, Sample, difference, plainly_refused, sample, spark_answers
from differential.compositions import compositions
from differential.forms import ORDERED, Form, casts, expressions
from differential.intended import INTENDED
from penstock.expr.sql import SYNTAX
from penstock.expr.sql_aggregates import AGGREGATES
from penstock.expr.sql_functions import FUNCTIONS

FULL = os.environ.get("PENSTOCK_DIFFERENTIAL") == "full"
ROWS, ERRORS = (2_000, 20) if FULL else (200, 5)
TYPES = ORDERED if FULL else ("int", "double", "string")  # of aggregates, which cost Spark more
SEED = int(os.environ.get("PENSTOCK_SEED", "1"))

# The time of events is Penstock's own, and has no counterpart.
OWN = {"event_time"}
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "functions.md"


def every_form() -> list[Form]:
    return [*expressions(), *casts()]


def forms_of_this_run() -> list[Form]:
    """All, or a third of them: the first of each entry, and those that chance chose."""
    if FULL:
        return every_form()
    seen: set[str] = set()
    return [form for form in every_form() if form.number % 3 == SEED % 3 or not (form.covers in seen or seen.add(form.covers))]


def test_every_entry_of_the_readers_tables_has_a_form() -> None:
    covered = {form.covers for form in every_form()}
    assert (SYNTAX.keys() | FUNCTIONS.keys()) - OWN - covered == set(), "these are read, and compared with nothing"
    assert covered - SYNTAX.keys() - FUNCTIONS.keys() == set(), "these are compared, and no longer read"


def test_every_aggregate_has_a_form() -> None:
    assert {form.covers for form in aggregates()} == set(AGGREGATES)


def test_differences_by_intent_are_few_and_told_to_users() -> None:
    assert len(INTENDED) <= 10
    assert {intent for form in [*every_form(), *aggregates()] for intent in form.intents} == set(INTENDED)
    guide = " ".join(GUIDE.read_text().split())
    assert [each.reason for each in INTENDED.values() if each.reason not in guide] == []


@pytest.mark.spark
@pytest.mark.slow
def test_every_form_means_what_it_means_in_spark(spark: Any) -> None:
    samples = [sample(form, ROWS, ERRORS, SEED) for form in forms_of_this_run()]
    few = [str(each.form) for each in samples if len(each.columns[0]) < ROWS]
    assert few == [], "too few of their rows have a value"
    found = []
    for start in range(0, len(samples), CHUNK):
        chunk = samples[start : start + CHUNK]
        answers = spark_answers(spark, chunk)
        found += [difference(each.form, each, answer) for each, answer in zip(chunk, answers, strict=True)]
    unexplained = [text for text in found if text is not None]
    assert unexplained == [], "\n" + "\n".join(unexplained)


@pytest.mark.spark
@pytest.mark.slow
def test_random_compositions_mean_what_they_mean_in_spark(spark: Any) -> None:
    samples = [sample(form, 150, ERRORS, SEED) for form in compositions(600 if FULL else 90, SEED)]
    found = []
    for start in range(0, len(samples), CHUNK):
        chunk = samples[start : start + CHUNK]
        answers = spark_answers(spark, chunk)
        found += [difference(each.form, each, answer) for each, answer in zip(chunk, answers, strict=True)]
    unexplained = [text for text in found if text is not None]
    assert unexplained == [], "\n" + "\n".join(unexplained)


@pytest.mark.spark
@pytest.mark.slow
def test_every_aggregate_means_what_it_means_in_spark(spark: Any) -> None:
    found = [difference(each.form, each, answer) for each, answer in compared(spark, list(aggregates(TYPES)), ROWS, SEED)]
    unexplained = [text for text in found if text is not None]
    assert unexplained == [], "\n" + "\n".join(unexplained)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="one job of Spark's for each row: make differential")
def test_rows_that_raise_end_a_job_of_spark(spark: Any) -> None:
    samples = [each for form in every_form() if (each := _raising(form)) is not None]
    assert len(samples) > 100
    assert [str(each.form) for each in samples if not plainly_refused(spark, each)] == []


def _raising(form: Form) -> Sample | None:
    """One row of the form that raises, if there is one."""
    if form.covers == "TryCast" or form.intents:
        return None
    found = sample(form, 200, 1, SEED)
    return found if found.ours.bad.true_count else None
