"""The command line: what it takes, what it says, and with which code it ends. On the local runner, which needs no Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import penstock as pen
from penstock import sinks, sources
from penstock.cli import OPTIONS, app
from penstock.errors import JobError
from penstock.runners.options import DEFAULTS

SRC = Path(__file__).parent.parent / "src"

ONE = """
import penstock as pen
from penstock import sinks, sources
print("imported")
pipeline = (
    pen.Pipeline("one").read(sources.memory([1, 2, 3], schema=int)).filter("value > 1").write(sinks.console())
)
if __name__ == "__main__":
    raise SystemExit("must not run")
"""

MADE = """
from __future__ import annotations
from pathlib import Path
from typing import Literal
import penstock as pen
from penstock import sinks, sources

def pipeline(n: int, name: str = "made", scale: float = 1.0, loud: bool = False, folder: Path | None = None,
             mode: Literal["a", "b"] = "a", limit: int | None = 3, guess=7, when: pen.Row = None):
    print([n, name, scale, loud, folder, mode, limit, guess])
    return pen.Pipeline(name).read(sources.memory([1], schema=int)).write(sinks.console())
"""

ENDLESS = """
import penstock as pen
from penstock import sinks, sources

def numbers(index, seed):
    return {"n": index, "key": index % 3}

pipeline = (
    pen.Pipeline("endless")
    .read(sources.generate(numbers, schema="n bigint not null, key bigint not null", rate=2_000))
    .key_by("key").aggregate(n=pen.count(), name="counts").write(sinks.memory("endless"))
)
"""


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Files of one test are not seen by the next, nor is what this machine is configured to."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in ("one", "made", "endless", "broken"):
        if name not in modules:
            sys.modules.pop(name, None)


def invoke(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def file(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def test_a_file_is_imported_and_its_pipeline_run() -> None:
    done = invoke("run", file("one.py", ONE), "--runner", "local")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("imported") == 1
    assert "│ 3" in done.stdout
    assert "one finished at epoch" in done.stderr


def test_another_name_can_be_run() -> None:
    assert invoke("run", file("one.py", ONE + "\nother = pipeline\n") + ":other", "--runner", "local").exit_code == 0


def test_parameters_are_set_and_converted() -> None:
    sets = ["n=1_000", "name=x", "scale=2.5", "loud=yes", "folder=a/b", "mode=b", "limit=none", "guess=8"]
    done = invoke("explain", file("made.py", MADE), *(part for each in sets for part in ("--set", each)))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "[1000, 'x', 2.5, True, PosixPath('a/b'), 'b', None, 8]"
    assert "pipeline x" in done.stdout


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], "made.py:pipeline needs n\n  Write: --set n=..."),
        (["n"], "--set n: expected NAME=VALUE"),
        (["n=many"], "--set n=many: expected a whole number"),
        (["n=1", "scale=big"], "--set scale=big: expected a number"),
        (["n=1", "loud=maybe"], "--set loud=maybe: expected true or false"),
        (["n=1", "mode=c"], "--set mode=c: expected one of a, b"),
        (["n=1", "limit=x"], "--set limit=x: expected a whole number"),
        (["n=1", "when=now"], "--set when=now: a Row cannot be set from the command line"),
        (
            ["n=1", "nam=x"],
            "has no parameter 'nam'. It has: n, name, scale, loud, folder, mode, limit, guess, when. Did you mean 'name'?",
        ),
        (["n=1", "name=a/b"], "'a/b' cannot be the name of a pipeline"),
    ],
)
def test_wrong_settings_are_named(sets: list[str], message: str) -> None:
    done = invoke("run", file("made.py", MADE), "--runner", "local", *(part for each in sets for part in ("--set", each)))
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "broken.py has nothing called 'pipeline'\n  Call the pipeline so, pipeline = pen.Pipeline(...)"),
        (
            "import penstock as pen\nother = pen.Pipeline('x')",
            "broken.py has nothing called 'pipeline', and has a pipeline called 'other'\n  Write: broken.py:other",
        ),
        ("pipeline = 7", "pipeline in broken.py is int"),
        ("def pipeline():\n    pass", "returned NoneType, and should return a pipeline\n  End the function with the pipeline"),
        ("x = 1\ny = nowhere", "ConfigError: broken.py:2: NameError: name 'nowhere' is not defined"),
        ("def pipeline():\n    return 1 / 0", "broken.py:2: ZeroDivisionError: division by zero"),
        ("def pipeline(", "broken.py:1: '(' was never closed"),
        ("import penstock as pen\npipeline = pen.Pipeline('x')", "PlanError: pipeline 'x' writes nothing"),
        (ONE.replace("value > 1", "vale > 1"), "PlanError: broken.py:6: there is no column 'vale'"),
    ],
)
def test_a_wrong_file_is_one_message_that_names_the_line(text: str, message: str) -> None:
    done = invoke("run", file("broken.py", text), "--runner", "local")
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "one"], "there is no file one, and the name of a Python file ends in .py Give a Python file, such as one.py"),
        (["run", "json.py"], "json.py has the name of the module 'json'"),
        (["run", "a.b.py"], "a.b.py cannot be imported"),
        (["run", "one.py", "--set", "x=1"], "pipeline in one.py is a pipeline, not a function with parameters to set"),
        (["run", "one.py", "--runner", "flink"], "--runner"),
        (["run", "one.py", "--runner", "local", "--snapshot-every", "1"], "snapshot_every='1' is not a duration"),
        (
            ["run", "one.py", "--runner", "local", "--parallelism", "0"],
            "parallelism=0 (argument) is not a whole number of 1 or more",
        ),
        (
            ["run", "one.py", "--runner", "batch", "--keep", "2"],
            "the batch runner has no option --keep. It has: --parallelism, --storage",
        ),
        (["run", "one.py", "--runner", "local", "--restore", "nothing-here"], "there is no savepoint in"),
        (["status", "../x", "--storage", "."], "cannot be the name of a pipeline"),
        (["status", "x"], "where is the storage of 'x'?"),
        (["status", "x", "--storage", "s3://bucket"], "there is no store for 's3'"),
    ],
)
def test_what_cannot_be_meant_ends_with_2(args: list[str], message: str) -> None:
    for name in ("one.py", "json.py", "a.b.py"):
        file(name, ONE)
    done = invoke(*args)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


def test_a_job_that_fails_ends_with_1() -> None:
    text = ONE.replace('.filter("value > 1")', ".map(lambda row: 1 // (row.value - 2), schema=int)")
    done = invoke("run", file("one.py", text), "--runner", "local")
    assert done.exit_code == 1
    assert "JobError: the job 'one' failed" in done.stderr
    assert "Traceback" not in done.output


def test_explain_shows_plan_guarantee_and_where_options_come_from() -> None:
    Path("penstock.toml").write_text('[pipeline.one]\nkeep = 9\n[defaults]\nsnapshot_every = "3s"\n')
    done = invoke("explain", file("one.py", ONE), "--runner", "local", "--parallelism", "2")
    assert done.exit_code == 0
    for text in ("logical plan", "[one.py:6]", "guarantee  at-least-once", "parallelism = 2  (argument)", "snapshot_every = 3s"):
        assert text in done.stdout
    assert "keep = 9  (penstock.toml [pipeline.one])" in done.stdout


def test_everything_has_a_help_text() -> None:
    assert "Usage" in invoke().output
    for command in ("run", "explain", "status", "savepoint", "stop", "cancel", "demo"):
        done = invoke(command, "--help")
        assert done.exit_code == 0
        assert "Usage" in done.stdout
    assert invoke("--version").stdout.startswith("penstock ")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`penstock run` of an endless pipeline, in a process of its own."""
    args = ["run", file("endless.py", ENDLESS), "--runner", "local", "--storage", "store", "--snapshot-every", "100ms"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "penstock.cli", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        wait_until(lambda: started(tmp_path / "store") or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        yield process
        if process.poll() is None:
            process.kill()


def started(storage: Path) -> bool:
    try:
        return pen.attach("endless", storage).status().epoch > 0
    except JobError:
        return False


def wait_until(true: Callable[[], bool], within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)


def test_a_running_job_is_seen_saved_and_stopped_from_outside(running: subprocess.Popen[str]) -> None:
    shown = invoke("status", "endless", "--storage", "store")
    assert shown.exit_code == 0
    assert "state        running" in shown.stdout
    assert "source generate" in shown.stdout
    assert json.loads(invoke("status", "endless", "--storage", "store", "--json").stdout)["state"] == "running"

    saved = invoke("savepoint", "endless", "saved", "--storage", "store")
    assert saved.exit_code == 0, saved.output
    assert Path("saved/savepoint.json").exists()
    again = invoke("savepoint", "endless", "saved", "--storage", "store")
    assert again.exit_code == 1
    assert "already holds a savepoint" in again.stderr

    stopped = invoke("stop", "endless", "--storage", "store")
    assert stopped.exit_code == 0, stopped.output
    assert "endless stopped. Its newest published epoch is" in stopped.stdout
    _, told = running.communicate(timeout=20)
    assert running.returncode == 0
    assert "endless: running, epoch" in told
    assert "endless stopped at epoch" in told
    assert ", and goes on from there at the next start." in told

    shown = invoke("status", "endless", "--storage", "store")
    assert shown.exit_code == 0
    assert "endless is not running. Its newest published epoch is" in shown.stdout
    assert json.loads(invoke("status", "endless", "--storage", "store", "--json").stdout)["state"] == "not running"
    assert invoke("stop", "endless", "--storage", "store").exit_code == 1
    other = invoke("status", "other", "--storage", "store")
    assert other.exit_code == 1
    assert "Jobs there: endless" in other.stderr


def test_cancel_from_outside(running: subprocess.Popen[str]) -> None:
    assert invoke("cancel", "endless", "--storage", "store").exit_code == 0
    _, told = running.communicate(timeout=20)
    assert running.returncode == 0
    assert "endless cancelled at epoch" in told


def test_finish_from_outside_is_the_end(running: subprocess.Popen[str]) -> None:
    done = invoke("stop", "endless", "--finish", "--storage", "store")
    assert "endless finished. " in done.stdout
    assert "it is finished" in done.stdout
    running.communicate(timeout=20)
    assert running.returncode == 0


def test_ctrl_c_stops_gracefully(running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGINT)
    out, told = running.communicate(timeout=20)
    assert running.returncode == 0
    assert "stopping after one more snapshot" in out + told
    assert "endless stopped at epoch" in told


def test_a_second_start_of_a_running_job_is_refused(running: subprocess.Popen[str]) -> None:
    done = invoke("run", "endless.py", "--runner", "local", "--storage", "store")
    assert done.exit_code == 1
    assert "HeldError: this job is already running: pid" in done.stderr
    assert running.poll() is None


def test_importing_the_command_does_not_load_spark() -> None:
    code = "import sys, penstock.cli; print('pyspark' in sys.modules, 'penstock.demo' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, timeout=60)
    assert out.stdout.split() == ["False", "False"]


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"penstock {pen.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_it(shell: str) -> None:
    environ = {**os.environ, "_PENSTOCK_COMPLETE": f"source_{shell}"}
    done = subprocess.run(
        [sys.executable, "-m", "penstock"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert "_PENSTOCK_COMPLETE" in done.stdout
    assert "--install-completion" in invoke("--help").stdout


def test_the_jobs_of_a_storage_are_listed_with_how_far_they_came(running: subprocess.Popen[str]) -> None:
    made = pen.Pipeline("done").read(sources.memory([1], schema=int)).write(sinks.memory("done-jobs"))
    made.run(pen.Local(storage="store"))
    for odd in ("torn", "with space", "-x", "a" * 200):  # all but the first are no names of jobs
        Path(f"store/{odd}/log").mkdir(parents=True)
    shown = [json.loads(line) for line in invoke("jobs", "--storage", "store", "--json").stdout.splitlines()]
    assert [(job["name"], job["state"], job["runner"]) for job in shown] == [
        ("done", "finished", "local"),
        ("endless", "running", "local"),
        ("torn", "not running", ""),
    ]
    assert shown[0]["epoch"] >= 1
    table = invoke("jobs", "--storage", "store")
    assert table.exit_code == 0
    assert "endless" in table.stdout
    assert "running" in table.stdout


def test_a_storage_without_jobs_and_one_that_is_none_are_told_apart() -> None:
    Path("empty").mkdir()
    assert invoke("jobs", "--storage", "empty").stdout == "There is no job here.\n"
    for arguments, said in (([], "no storage is named"), (["--storage", "nowhere"], "there is no folder")):
        done = invoke("jobs", *arguments)
        assert done.exit_code == 2
        assert said in done.stderr


def test_every_option_of_a_runner_has_a_flag() -> None:
    assert set(OPTIONS) == set(DEFAULTS) - {"guarantee"} | {"rows_per_epoch"}, "guarantee has one value so far"
    for command in ("run", "explain"):
        text = invoke(command, "--help").stdout
        assert [option for option in OPTIONS if f"--{option.replace('_', '-')}"[:16] not in text] == []


def test_flags_reach_the_runner() -> None:
    flags = ["--unaligned-after", "never", "--no-finish", "--parallelism", "2"]
    shown = invoke("explain", file("one.py", ONE), "--runner", "local", *flags)
    assert shown.exit_code == 0, shown.output
    assert "unaligned_after = never  (argument)" in shown.stdout
    assert "finish = False  (argument)" in shown.stdout
    refused = invoke("explain", "one.py", "--runner", "local", "--rows-per-epoch", "9")
    assert "the local runner has no option --rows-per-epoch" in refused.stderr


HIDDEN = """
import sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "pyspark" else PathFinder.find_spec(name, path, target)

sys.meta_path = [Hidden if finder is PathFinder else finder for finder in sys.meta_path]
"""
WITHOUT_SPARK = (
    HIDDEN
    + """
import penstock as pen
from penstock import sinks, sources
from penstock.cli import default_name

out = sinks.memory("without")
job = pen.Pipeline("p").read(sources.memory([1], schema=int)).write(out).run()
print(job.status().runner, out.rows())
print(default_name())
"""
)


def test_without_spark_a_pipeline_runs_locally_and_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "local [{'value': 1}]\nlocal\n"
    assert "pyspark is not installed, so this runs locally" in done.stderr
    assert 'pip install "penstock[spark]"' in done.stderr
