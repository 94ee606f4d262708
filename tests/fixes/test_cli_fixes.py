"""The fixes of the command `penstock`: files that cannot be run, and what is missing in them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fixes.applying import code_of, shown
from penstock import cli

READ = """import penstock as pen
from penstock import sinks, sources
"""
WRITE = """
{name}.read(sources.memory([1], schema=int)).write(sinks.discard())
"""
FUNCTION = (
    READ
    + """
def pipeline(n: int, name: str):
    p = pen.Pipeline(name)
    p.read(sources.memory(range(n), schema=int)).write(sinks.discard())
    {ending}
"""
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Files are imported from a folder of the test's own, and forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def file(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def pipeline(name: str) -> str:
    """A file in which a pipeline has that name."""
    return f'{READ}{name} = pen.Pipeline("p"){WRITE.format(name=name)}'


def ran(*arguments: str) -> Any:
    done = CliRunner().invoke(cli.app, ["run", *arguments, "--runner", "local"])
    assert done.exit_code == 0, done.output
    assert "finished at epoch" in done.stderr
    return done


def test_another_pipeline_of_the_file_is_named_on_the_command_line() -> None:
    Path("jobs").mkdir()
    target = file("jobs/named_other.py", pipeline("hourly"))
    (code,) = code_of(shown("cli.pipeline", lambda: cli.load(target, [])))
    assert code == "jobs/named_other.py:hourly"
    ran(code)
    (code,) = code_of(shown("cli.pipeline", lambda: cli.load(f"{target}:daily", [])))
    assert code == "jobs/named_other.py:hourly"


def test_a_file_without_a_pipeline_gets_one_or_a_function_that_returns_it() -> None:
    text = shown("cli.pipeline", lambda: cli.load(file("without.py", "x = 1"), []))
    assigned, function = text.partition(", ")[2].split(", or the function that returns it: ")
    ran(file("with_pipeline.py", f"{READ}{assigned.replace('...', repr('p'))}{WRITE.format(name='pipeline')}"))
    body = f"    p = pen.Pipeline('p')\n    {WRITE.format(name='p').strip()}\n    return p\n"
    ran(file("with_function.py", f"{READ}{function}:\n{body}"))


def test_a_function_that_makes_a_pipeline_returns_it() -> None:
    settings = ["n=3", "name=p"]
    text = shown("cli.returns", lambda: cli.load(file("returns_nothing.py", FUNCTION.format(ending="pipeline = p")), settings))
    ending = f"pipeline = p; {text.partition(': ')[2]}"
    target = file("returns_it.py", FUNCTION.format(ending=ending))
    ran(target, *(part for each in settings for part in ("--set", each)))


@pytest.mark.parametrize("name", ["ads", "ads.txt", "jobs/ads"])
def test_a_python_file_is_given(name: str) -> None:
    Path("jobs").mkdir()
    text = shown("cli.file", lambda: cli.load(name, []))
    ran(file(text.rpartition(" ")[2], pipeline("pipeline")))


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_no_file_at_all_is_no_python_file(name: str) -> None:
    assert shown("cli.file", lambda: cli.load(name, [])) == "Give a Python file, such as ads.py"
    ran(file("ads.py", pipeline("pipeline")))


@pytest.mark.parametrize("name", ["a.b.py", "ads", "ads.v2"])
def test_a_file_that_cannot_be_imported_is_renamed(name: str) -> None:
    file(name, pipeline("pipeline"))
    text = shown("cli.file-name", lambda: cli.load(name, []))
    ran(str(Path(name).rename(text.rpartition(" ")[2])))


def test_a_file_with_the_name_of_a_module_is_renamed() -> None:
    file("json.py", pipeline("pipeline"))
    text = shown("cli.module-name", lambda: cli.load("json.py", []))
    ran(str(Path("json.py").rename(text.rpartition(" ")[2])))


def test_the_parameters_of_a_pipeline_are_set() -> None:
    target = file("needs_values.py", FUNCTION.format(ending="return p"))
    (code,) = code_of(shown("cli.settings", lambda: cli.load(target, [])))
    assert code == "--set n=... --set name=..."
    ran(target, *code.replace("n=...", "n=3", 1).replace("name=...", "name=p").split())
