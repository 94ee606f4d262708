"""The command `penstock`: run a pipeline file, look at it, and tell a running job what to do.

    penstock run ads.py --runner continuous --parallelism 4 --storage checkpoints --set out=counts
    penstock explain ads.py
    penstock status ad-counts --storage checkpoints
    penstock demo

1. A pipeline file is a Python file with something called `pipeline` in it: a Pipeline, or a function that returns one and whose
   annotated parameters `--set` sets. `ads.py:hourly` takes another name. It is imported, so that `__main__` does not run.
2. Results go to standard output, progress and errors to standard error.
3. Exit code 0: done. 1: the job failed, or there is none. 2: nothing was run: the command, the pipeline or an option is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import enum
import importlib.util
import inspect
import json
import re
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import penstock
from penstock.api.pipeline import Pipeline
from penstock.errors import ConfigError, Fix, JobError, PenstockError, PlanError, RestoreError, RunnerError
from penstock.restoreflags import flags_text, restore_of
from penstock.runners.control import attach, job_folder, newest_in, stored_text
from penstock.runners.job import Job, graceful_interrupt
from penstock.runners.listing import jobs_in
from penstock.runners.runner import Runner
from penstock.runners.status import Status

__all__ = ["app", "load", "main"]

LOOK_S = 0.2
TELL_S = 2.0  # between lines, where they stay
# Of runners, and flags.
OPTIONS = (
    *("parallelism", "storage", "snapshot_every", "keep", "state", "restarts", "backoff", "latency"),
    *("watermark_every", "unaligned_after", "rows_per_epoch", "finish"),
)
USAGE = (PlanError, ConfigError, RunnerError, RestoreError)  # nothing was run


class RunnerName(enum.StrEnum):
    """What can be said after --runner."""

    LOCAL = "local"
    MICRO_BATCH = "micro-batch"
    CONTINUOUS = "continuous"
    BATCH = "batch"


class Commands(typer.core.TyperGroup):
    """All commands. What Penstock raises on purpose is printed as one message, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            Console(stderr=True, highlight=False, markup=False).print(
                f"{type(error).__name__.strip('_')}: {error}", soft_wrap=True
            )
            if flags := flags_text(error.fix):
                typer.echo(f"  On the command line: {flags}", err=True)
            raise typer.Exit(2 if isinstance(error, USAGE) else 1) from None


app = typer.Typer(
    name="penstock",
    cls=Commands,
    help="Stream processing in Python, on Spark: exactly once, in micro-batches or continuously.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[str, typer.Argument(metavar="FILE[:NAME]", help="A Python file, and what in it to run: 'pipeline' if left out.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name, as in pen.Pipeline(NAME).")]
Storage = Annotated[str | None, typer.Option(help="Folder of checkpoints; else PENSTOCK_STORAGE or penstock.toml says it.")]
Parallelism = Annotated[int | None, typer.Option(help="Tasks per stage; may change at each start.")]
SnapshotEvery = Annotated[str | None, typer.Option(help="Length of an epoch: how often output appears. Like 250ms, 1s, 1m.")]
Keep = Annotated[int | None, typer.Option(help="How many checkpoints to keep.")]
State = Annotated[str | None, typer.Option(help="Where a running task keeps its tables: columnar or rocksdb.")]
Restarts = Annotated[int | None, typer.Option(help="Give up after so many restarts in a row without a new checkpoint.")]
Backoff = Annotated[str | None, typer.Option(help="First wait before a restart; then doubled.")]
Latency = Annotated[str | None, typer.Option(help="Longest wait to fill a batch where it saves work.")]
WatermarkEvery = Annotated[str | None, typer.Option(help="How often event time moves on, at most.")]
UnalignedAfter = Annotated[
    str | None,
    typer.Option(help="How long a snapshot waits behind rows before they become part of it; never: as long as it takes."),
]
RowsPerEpoch = Annotated[int | None, typer.Option(help="Rows each task reads in an epoch, at most, on Spark's jobs.")]
Finish = Annotated[
    bool | None,
    typer.Option(
        "--finish/--no-finish", help="--no-finish: stop when nothing is left to read, close no window, go on next time."
    ),
]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the pipeline function.")]


@app.callback(invoke_without_command=True)
def about(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Stream processing in Python, on Spark: exactly once, in micro-batches or continuously."""
    if version:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.command("run")
def run_command(
    ctx: typer.Context,
    file: File,
    runner: Annotated[
        RunnerName | None,
        typer.Option(
            envvar="PENSTOCK_RUNNER", help="Who runs it; never changes the result. Left out: micro-batch; local without Spark."
        ),
    ] = (None),
    parallelism: Parallelism = None,
    storage: Storage = None,
    snapshot_every: SnapshotEvery = None,
    keep: Keep = None,
    state: State = None,
    restarts: Restarts = None,
    backoff: Backoff = None,
    latency: Latency = None,
    watermark_every: WatermarkEvery = None,
    unaligned_after: UnalignedAfter = None,
    rows_per_epoch: RowsPerEpoch = None,
    finish: Finish = None,
    settings: Settings = None,
    restore: Annotated[
        str, typer.Option(metavar="PATH|none|latest", help="A savepoint to start from; none: start empty.")
    ] = "latest",
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="A step, source or step.state that has another name now.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A step, source or step.state that may be forgotten.")
    ] = None,
    start_empty: Annotated[
        list[str] | None, typer.Option(metavar="STEP.AGGREGATE", help="A new aggregate that may count from here on.")
    ] = None,
    start_over_time: Annotated[
        bool, typer.Option("--start-over-time", help="Begin event time anew, and keep the state.")
    ] = False,
) -> None:
    """Run a pipeline until its input ends, or Ctrl-C stops it after one more snapshot.

    With --storage the pipeline of that name goes on where it was; without, it starts empty and leaves nothing behind.
    """
    pipeline = load(file, settings or [])
    job = make_runner(runner or default_name(), ctx.params).start(
        pipeline, restore=restore_of(restore, rename or [], drop or [], start_empty or [], start_over_time=start_over_time)
    )
    follow(job)
    status = job.status()
    more = (
        ", and goes on from there at the next start"
        if status.state in ("stopped", "cancelled") and job.conductor.options.storage
        else ""
    )
    typer.echo(f"{job.name} {status.state} at epoch {status.epoch}{more}.", err=True)


@app.command()
def explain(
    ctx: typer.Context,
    file: File,
    runner: Annotated[RunnerName | None, typer.Option(help="Also show this runner's options, each with its origin.")] = None,
    parallelism: Parallelism = None,
    storage: Storage = None,
    snapshot_every: SnapshotEvery = None,
    keep: Keep = None,
    state: State = None,
    restarts: Restarts = None,
    backoff: Backoff = None,
    latency: Latency = None,
    watermark_every: WatermarkEvery = None,
    unaligned_after: UnalignedAfter = None,
    rows_per_epoch: RowsPerEpoch = None,
    finish: Finish = None,
    settings: Settings = None,
) -> None:
    """Print what would run: the plan, where its steps are written, and what it guarantees. Nothing is run."""
    pipeline = load(file, settings or [])
    shown = None
    if runner is not None:
        chosen = make_runner(runner, ctx.params)
        shown = types.SimpleNamespace(describe=lambda: chosen.describe(pipeline.name))  # its own section of penstock.toml counts
    typer.echo(pipeline.explain(shown))


@app.command()
def status(
    name: Name,
    storage: Storage = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Show how a job is doing; of one that is not running, the newest epoch in storage."""
    folder = job_folder(name, storage)
    try:
        job = attach(name, storage)
        found, steps = job.status(), job.metrics()
    except JobError:
        newest = newest_in(folder)
        if newest is None:
            raise
        if as_json:
            shown = {"pipeline": name, "state": "not running", "epoch": newest.epoch, "finished": newest.finished}
            typer.echo(json.dumps({**shown, "runner": newest.runner, "created_us": newest.created_us}))
        else:
            typer.echo(f"{name} is not running. {stored_text(folder)}.")
        return
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), "steps": steps}))
        return
    for label, value in dataclasses.asdict(found).items():
        for line in value if isinstance(value, tuple | list) else [value]:
            typer.echo(f"{label:<12} {'-' if line is None else line}")
    if steps:
        counted = sorted({what for step in steps for what in step} - {"step"})
        table = Table("step", *counted)
        for step in steps:
            table.add_row(Text(str(step["step"])), *(f"{step[what]:,}" if what in step else "" for what in counted))
        Console(highlight=False).print(table)


@app.command()
def savepoint(
    name: Name,
    path: Annotated[Path, typer.Argument(help="A new folder for it.")],
    storage: Storage = None,
    timeout: Annotated[str, typer.Option(help="How long to wait for it.")] = "5m",
) -> None:
    """Take a savepoint of a running job: a folder to start from again (run --restore PATH). The job goes on."""
    typer.echo(str(attach(name, storage).savepoint(path, timeout=timeout)))


@app.command()
def stop(
    name: Name,
    storage: Storage = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Also close every window, as if the input had ended. It is the end.")
    ] = False,
    timeout: Annotated[str | None, typer.Option(help="How long to wait for the end; for ever if left out.")] = None,
) -> None:
    """Stop a running job after one more snapshot. It can be resumed, except with --finish."""
    attach(name, storage).stop(finish=finish, timeout=timeout)
    typer.echo(f"{name} {'finished' if finish else 'stopped'}. {stored_text(job_folder(name, storage))}.")


@app.command()
def cancel(name: Name, storage: Storage = None) -> None:
    """Stop a running job at once, without a snapshot. The next start commits what was published, and reads the rest again."""
    attach(name, storage).cancel()
    typer.echo(f"{name} cancelled. {stored_text(job_folder(name, storage))}.")


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=4, help="How long the input lasts.")] = 20.0,
    rate: Annotated[float, typer.Option(min=1000, help="Events per second.")] = 20_000,
) -> None:
    """Count ads on Spark, kill a worker half-way, and check that nothing was lost or counted twice. Half a minute."""
    from penstock.demo import run

    raise typer.Exit(0 if run(seconds=seconds, rate=rate).exactly_once else 1)


def main() -> None:
    """The command `penstock`."""
    app(prog_name="penstock")


@app.command()
def jobs(
    storage: Storage = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs: a line for each.")] = False,
) -> None:
    """List the jobs of a storage: which are running, and how far the others came."""
    found = jobs_in(storage)
    if as_json:
        for job in found:
            typer.echo(json.dumps(dataclasses.asdict(job)))
        return
    if not found:
        typer.echo("There is no job here.")
        return
    table = Table("job", "state", "epoch", "runner", "newest checkpoint (UTC)")
    for job in found:
        table.add_row(Text(job.name), job.state, "-" if job.epoch is None else f"{job.epoch:,}", job.runner, job.at)
    Console(highlight=False).print(table)
    for job in found:
        if job.error:
            typer.echo(f"{job.name}: {job.error}", err=True)


# From the command line to a pipeline and a runner.


def default_name() -> RunnerName:
    """The runner if none is named."""
    return RunnerName.LOCAL if penstock.without_spark() else RunnerName.MICRO_BATCH


def make_runner(name: RunnerName, flags: Mapping[str, Any]) -> Runner:
    """A runner with the options that were given; those it does not have are an error."""
    # The class is loaded only now, and with it perhaps pyspark.
    kind: Callable[..., Runner] = getattr(penstock, name.value.title().replace("-", ""))
    given = {option: flags[option] for option in OPTIONS if flags[option] is not None}
    known = inspect.signature(kind).parameters
    for option in given:
        if option not in known:
            has = ", ".join(f"--{each.replace('_', '-')}" for each in OPTIONS if each in known)
            raise ConfigError(f"the {name.value} runner has no option --{option.replace('_', '-')}. It has: {has}")
    return kind(**given)


def load(target: str, settings: list[str]) -> Pipeline:
    """The pipeline in a file: `ads.py` or `ads.py:hourly`, with its parameters set."""
    path, name = split_target(target)
    module = import_file(path)
    found = getattr(module, name, None)
    if found is None:
        others = [key for key, value in vars(module).items() if isinstance(value, Pipeline)]
        raise ConfigError(
            f"{path.name} has nothing called {name!r}" + (f", and has a pipeline called {others[0]!r}" if others else ""),
            fix=Fix("cli.pipeline", _naming(target.removesuffix(f":{name}"), name, others)),
        )
    if isinstance(found, Pipeline):
        if settings:
            raise ConfigError(f"--set {settings[0]}: {name} in {path.name} is a pipeline, not a function with parameters to set")
        return found
    if not callable(found):
        raise ConfigError(
            f"{name} in {path.name} is {type(found).__name__}, and should be a pipeline or a function that returns one"
        )
    arguments = parse_settings(found, settings, f"{path.name}:{name}")
    with users_mistakes(path):
        made = found(**arguments)
    if not isinstance(made, Pipeline):
        raise ConfigError(
            f"{name}() in {path.name} returned {type(made).__name__}, and should return a pipeline",
            fix=Fix("cli.returns", "End the function with the pipeline, as in: return pipeline"),
        )
    return made


def _naming(file: str, name: str, others: list[str]) -> str:
    """How a file gets something of this name, or which of its pipelines to take."""
    if others:
        return f"Write: {file}:{others[0]}"
    return f"Call the pipeline so, {name} = pen.Pipeline(...), or the function that returns it: def {name}() -> pen.Pipeline"


def split_target(target: str) -> tuple[Path, str]:
    """File and name."""
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        file, name = target, "pipeline"
    path = Path(file)
    if not path.is_file():
        if path.suffix == ".py":
            raise ConfigError(f"there is no file {file}")
        likely = path.with_suffix(".py") if path.stem.strip(".") else "ads.py"
        raise ConfigError(
            f"there is no file {file}, and the name of a Python file ends in .py",
            fix=Fix("cli.file", f"Give a Python file, such as {likely}"),
        )
    return path.resolve(), name


def import_file(path: Path) -> types.ModuleType:
    """Import a file under its own name, with its folder first on the path, as Python does: workers find it in the same way."""
    if "." in path.stem or path.suffix != ".py":
        raise ConfigError(
            f"{path.name} cannot be imported: workers import it by its name, which ends in .py and has no other dot",
            fix=Fix(
                "cli.file-name", f"Rename the file to {re.sub(r'[^0-9A-Za-z]+', '_', path.name.removesuffix('.py')) or 'ads'}.py"
            ),
        )
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) != str(path):
        raise ConfigError(
            f"{path.name} has the name of the module {path.stem!r}, which is in use",
            fix=Fix("cli.module-name", f"Rename the file to {path.stem}_pipeline.py"),
        )
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with users_mistakes(path):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def users_mistakes(path: Path) -> Iterator[None]:
    """Turn what the user's file raises into one message that names its line."""
    try:
        yield
    except PenstockError:
        raise
    except SyntaxError as error:
        raise ConfigError(f"{Path(error.filename or path).name}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        line, trace = 0, error.__traceback__
        while trace is not None:
            line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(path) else line
            trace = trace.tb_next
        raise ConfigError(f"{path.name}:{line}: {type(error).__name__}: {error}") from error


def parse_settings(function: Callable[..., Any], settings: list[str], what: str) -> dict[str, Any]:
    """The arguments of a pipeline function from NAME=VALUE texts."""
    parameters = inspect.signature(function).parameters
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise ConfigError(f"cannot read the annotations of {what}: {error}") from None
    arguments: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: expected NAME=VALUE")
        if name not in parameters:
            near = difflib.get_close_matches(name, parameters, n=1)
            known = ", ".join(parameters) or "none"
            raise ConfigError(
                f"{what} has no parameter {name!r}. It has: {known}" + (f". Did you mean {near[0]!r}?" if near else "")
            )
        default = parameters[name].default
        guess = str if default in (inspect.Parameter.empty, None) else type(default)
        arguments[name] = convert(text, hints.get(name, guess), f"--set {setting}")
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [name for name, each in parameters.items() if each.default is each.empty and each.kind not in several]
    missing = [name for name in required if name not in arguments]
    if missing:
        values = " ".join(f"--set {name}=..." for name in missing)
        raise ConfigError(f"{what} needs {', '.join(missing)}", fix=Fix("cli.settings", f"Write: {values}"))
    return arguments


def convert(text: str, kind: Any, what: str) -> Any:
    """A text as a value of an annotated type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return convert(text, inner[0], what)
    if origin in (typing.Union, types.UnionType):
        if type(None) in inner and text.lower() in ("none", ""):
            return None
        rest = [each for each in inner if each is not type(None)]
        for each in rest[:-1]:
            with contextlib.suppress(ConfigError):
                return convert(text, each, what)
        return convert(text, rest[-1], what)
    if origin is typing.Literal:
        for choice in inner:
            if str(choice) == text:
                return choice
        raise ConfigError(f"{what}: expected one of {', '.join(map(str, inner))}")
    if kind is bool:
        if text.lower() in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return text.lower() in ("true", "yes", "on", "1")
        raise ConfigError(f"{what}: expected true or false")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"{what}: expected {'a whole number' if kind is int else 'a number'}") from None
    if kind in (str, Any, Path):
        return Path(text) if kind is Path else text
    raise ConfigError(f"{what}: a {getattr(kind, '__name__', kind)} cannot be set from the command line")


# Watching a job.


def follow(job: Job) -> None:
    """Show how a job is doing until it has ended; raises what made it fail. Ctrl-C stops it gracefully."""
    pace, live = Pace(), None
    console = Console(stderr=not sys.stdout.isatty(), highlight=False)
    if console.is_terminal:
        live = Live(console=console, transient=True, auto_refresh=False)  # what a sink prints appears above it
        live.start()
    told_at, told = 0.0, ""
    try:
        with graceful_interrupt(job):
            while not job.done:
                now, found = time.monotonic(), job.status()
                line = progress_line(found, pace.rate(job, now))
                if live is not None:
                    live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
                elif now - told_at > TELL_S or (told and found.state != told):
                    told_at, told = now, found.state
                    console.print(line, markup=False, soft_wrap=True)
                job.conductor.halted.wait(LOOK_S)
    finally:
        if live is not None:
            live.stop()
    job.wait()


def progress_line(status: Status, rate: float) -> str:
    """A job in one line."""
    return (
        f"{status.pipeline}: {status.state}, epoch {status.epoch}, {rate:,.0f} rows/s, "
        f"watermark {status.watermark}, {status.restarts} restarts"
    )


class Pace:
    """Rows per second, from what was read between two looks."""

    def __init__(self) -> None:
        self._at, self._read, self._rate = 0.0, 0, 0.0

    def rate(self, job: Job, now: float) -> float:
        """As of now; over a second or more, since reports come in jumps."""
        if now - self._at >= 1.0:
            read = sum(int(row.get("read", 0)) for row in job.metrics())
            self._rate = max(0, read - self._read) / (now - self._at) if self._at else 0.0
            self._at, self._read = now, read
        return self._rate


if __name__ == "__main__":
    main()
