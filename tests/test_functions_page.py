"""The page that lists all functions lists all of them, and each of its examples gives what it says."""

from __future__ import annotations

import datetime
import decimal
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.expr import evaluate, parse, parse_aggregate
from penstock.expr.sql_aggregates import AGGREGATES
from penstock.expr.sql_functions import FUNCTIONS
from penstock.schema import to_schema
from test_docs import blocks

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "functions.md"


def table(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its first two lines."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def examples() -> list[tuple[str, str]]:
    rows = [row[-2:] for heading in ("Functions", "Operators and syntax") for row in table(heading) if code(row[-2])]
    return [(code(text)[0], code(given)[0]) for text, given in rows]


def test_the_page_has_every_function_in_the_form_that_errors_show() -> None:
    shown = [form for row in table("Functions") for form in code(row[0])]
    written = {form.form.replace("value as name, ...", "value as name, ...") for form in FUNCTIONS.values()}
    assert sorted(shown) == sorted(written)


def test_the_page_has_every_aggregate_and_each_is_read() -> None:
    shown = [form for row in table("Aggregates") for form in code(row[0])]
    assert {form.partition("(")[0] for form in shown} == set(AGGREGATES)
    for form in shown:
        parse_aggregate(form)


@pytest.mark.parametrize(("text", "given"), examples())
def test_an_example_gives_what_the_page_says(text: str, given: str) -> None:
    said: dict[str, Any] = {}
    exec(blocks(PAGE).partition("\nout = ")[0], said)
    batch = pa.RecordBatch.from_pylist([said["ROW"]], schema=to_schema(said["SCHEMA"]))
    found = evaluate(parse(text), batch)
    assert found.errors is None, found.reason
    assert found.values.to_pylist() == [eval(given, {"datetime": datetime, "decimal": decimal})]
