"""Functions of SQL that gave something else than Spark gives: dates that stayed texts, and lists that were counted from 0."""

from datetime import UTC, datetime

import penstock as pen
from penstock import sinks, sources

ROWS = [{"s": "2026-01-02", "t": datetime(2026, 1, 7, 12, 5, tzinfo=UTC), "a": ["p", "q"]}]
SCHEMA = "s string, t timestamp, a array<string>"


def show(**columns: str) -> None:
    out = sinks.memory("out")
    out.clear()
    try:
        pen.Pipeline("p").read(sources.memory(ROWS, schema=SCHEMA)).select(**columns).write(out).run(pen.Local())
        print(*out.rows())
    except pen.PenstockError as error:
        print(error)


show(of_a_time="to_date(t)", of_a_text="to_date(s)", of_a_format="to_date(s, 'yyyy-MM-dd')")
show(another_format="to_date(s, 'dd/MM/yyyy')")
show(rubbish="to_date('rubbish')")
show(first="element_at(a, 1)", last="element_at(a, -1)", none="try_element_at(a, 3)", month="trunc(t, 'MM')")
show(beyond="split(s, '-')[30]")
show(day="trunc(t, 'DAY')")
show(group="regexp_extract(s, '([0-9]+)-([0-9]+)', 2)", nothing="regexp_extract(s, '(x)')")
show(formatted="date_format(t, 'yyyy')")
