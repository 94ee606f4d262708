"""The Spark a runner runs on: found or made, and looked at before the first row.

A job that Spark cannot run should say so in seconds, in words, and before it touches anything. Spark itself waits ten minutes for
slots that will never come.

1. No session given: the active one; else one on this machine, set up right (`CONF`) and kept for the next job.
2. A session that was given, or found, is never changed. It is checked, and what is missing is named.
3. Slots are counted, not configured: `slots_of` asks the scheduler. A barrier stage holds all its slots for as long as the job
   runs.
4. On this machine everything listens on the loopback address. Executors elsewhere are refused until channels between them can be
   encrypted.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import os
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import Fix, RunnerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CONF", "check_session", "free_slots", "get_session", "is_local", "slots_of", "too_few_slots", "wait_for_slots"]

CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Within one process Spark makes the secret itself; without it every local user could talk to its ports.
    "spark.authenticate": "true",
    # By default Spark waits 15 s x 40 before it says that a barrier stage does not fit.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "2",
    # Workers of a failed attempt would live on for seconds, and hold their slots.
    "spark.python.task.killTimeout": "100ms",
    # Rows are in the Python workers: what is left for Java is little, and this collector takes 100 MiB less for it. By itself Java begins
    # with a heap of a 64th of the machine's memory; beginning with less and growing takes 80 MiB less.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -Xms64m",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}

LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} Spark %p %c{1}: %m%n%ex{short}
# A failed task is reported to the driver, which decides and tells the user once.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.scheduler.name = org.apache.spark.scheduler.TaskSchedulerImpl
logger.scheduler.level = off
logger.python.name = org.apache.spark.api.python
logger.python.level = off
"""

DAEMON = "penstock.runners.spark.daemon"
SLOTS_LEAST = 4  # of a session made here: the next job may want more than this one, and idle slots cost nothing
SLOTS_WAIT_S = 20.0
SETTLED_S = 2.0  # without another executor
SOCKET_PATH_MAX = 103


def get_session(spark: Any = None, *, slots: int, runner: str = "Continuous") -> SparkSession:
    """A classic Spark session that can run `slots` tasks at the same time.

    Args:
        spark: the user's own session; None for the active one, or a new one on this machine.
        runner: whose name the errors carry.
    """
    if spark is None:
        spark = active_session()
    if spark is None:
        return make_session(slots)
    check_session(spark, slots=slots, runner=runner)
    return spark


def active_session() -> Any:
    """The session of this process, if there is a live one."""
    require_pyspark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def make_session(slots: int, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A new session on this machine."""
    require_pyspark()
    from pyspark.sql import SparkSession

    # Read when the context is made: workers must be the same interpreter as we are, with the same packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.NamedTemporaryFile("w", prefix="penstock-log4j2-", suffix=".properties", delete=False) as file:
        file.write(LOGGING)
    try:
        builder = SparkSession.builder.appName("penstock").master(f"local[{max(slots, SLOTS_LEAST)}]")
        settings = {**CONF, **sockets(), **forks(), **(conf or {})}
        settings["spark.driver.extraJavaOptions"] += f" -Dlog4j2.configurationFile={Path(file.name).as_uri()}"
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
    finally:
        os.unlink(file.name)
    java = session.sparkContext._gateway.proc
    if java is not None:  # under spark-submit it is Java that started us
        atexit.register(dismiss_workers, os.getpid(), java.pid)
    return session


def sockets() -> dict[str, str]:
    """How Java and Python talk. Over TCP the first rows of every Python task wait 40 ms for the acknowledgement of what was sent before
    them; Unix sockets do not, but systems allow their paths, which are in the temporary folder, about a hundred bytes."""
    path = f"{tempfile.gettempdir()}/.{uuid.uuid4()}.sock"
    return {"spark.python.unix.domain.socket.enabled": "true" if len(os.fsencode(path)) <= SOCKET_PATH_MAX else "false"}


def forks() -> dict[str, str]:
    """Where workers come from: a process that has imported what they need. Only if it can be found by any Python that Spark starts, for
    whatever job: a package that is merely on our path is not."""
    try:
        importlib.metadata.distribution("penstock")
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {"spark.python.daemon.module": DAEMON}


def dismiss_workers(owner: int, java: int) -> None:
    """At the end of the process that made a session: end its Python workers before Java leaves them, which they would complain of."""
    if os.getpid() != owner:
        return
    for daemon in daemons_of(java):
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon, signal.SIGTERM)  # it ends its workers


def daemons_of(java: int) -> list[int]:
    """The processes that fork the Python workers of `java`. Its threads and children end while they are looked at; where there is no
    /proc there are none."""

    def read(path: Path) -> str:
        try:
            return path.read_text()
        except OSError:
            return ""

    children = [pid for file in Path(f"/proc/{java}/task").glob("*/children") for pid in read(file).split()]
    return [
        int(pid) for pid in children if any(name in read(Path(f"/proc/{pid}/cmdline")) for name in ("pyspark.daemon", DAEMON))
    ]


def require_pyspark() -> None:
    """Say what to install, instead of a bare ImportError."""
    try:
        import pyspark
    except ImportError:
        raise RunnerError(
            "this runner needs Spark, and pyspark is not installed",
            fix=Fix("spark.missing", 'Install it: pip install "penstock[spark]"'),
        ) from None
    if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 0):
        raise RunnerError(f"this runner needs pyspark 4.0 or later (4.3 is tested), and {pyspark.__version__} is installed")


def check_classic(spark: Any, runner: str, why: str) -> None:
    """Raise RunnerError unless the session is one of Spark in this process, and is still there; `why` it must be in this process."""
    if not hasattr(spark, "_jsparkSession"):
        raise RunnerError(
            f"{runner} needs classic Spark, and this is a Spark Connect session: {why}",
            fix=Fix(
                "spark.connect",
                "Submit the program with spark-submit, or start Spark in this process. "
                'Write: SparkSession.builder.master("local[4]").getOrCreate()',
            ),
        )
    if spark.sparkContext._jsc is None:
        raise RunnerError(
            f"{runner} needs a Spark session that is at work, and this one has been stopped",
            fix=Fix("spark.stopped", "Leave spark= out, or make a new session. Write: SparkSession.builder.getOrCreate()"),
        )


def check_session(spark: Any, *, slots: int, runner: str = "Continuous") -> None:
    """Raise RunnerError if `runner` cannot run `slots` tasks at the same time on this session."""
    check_classic(spark, runner, "tasks must reach the driver process")
    if is_dynamic(spark):
        raise RunnerError(
            f"{runner} holds its slots as long as it runs, and this Spark gives and takes executors (dynamic allocation is on)",
            fix=Fix("spark.dynamic", "Start Spark with executors that stay: --conf spark.dynamicAllocation.enabled=false"),
        )
    have = slots_in_time(spark, slots)
    if have < slots:
        raise too_few_slots(spark, slots, have, runner)
    strangers = sorted(hosts_of(spark) - own_hosts(spark))
    if strangers:
        raise RunnerError(
            f"{runner} runs on one machine so far, since rows between its workers are not encrypted, "
            f"and this Spark has executors on {', '.join(strangers)}",
            fix=Fix("cluster.several_hosts", "Start Spark on one machine, or use another runner. Write: pen.MicroBatch()"),
        )


def too_few_slots(spark: Any, wanted: int, have: int, runner: str = "Continuous") -> RunnerError:
    """What is wrong with a Spark that is too small."""
    return RunnerError(
        f"{runner} needs {wanted} slots at the same time, and this Spark has {have} ({spark.sparkContext.master})",
        fix=Fix("slots.too_few", f"Use parallelism={max(have, 1)}, or start Spark with {wanted} cores: {cores(spark, wanted)}"),
    )


def cores(spark: Any, wanted: int) -> str:
    """How a Spark of this kind is started with so many cores."""
    master, each = str(spark.sparkContext.master), int(setting(spark, "spark.executor.cores", "1"))
    if master.startswith("local-cluster["):
        _, own, memory = master.removeprefix("local-cluster[").rstrip("]").split(",")
        return f'--master "local-cluster[{-(-wanted // int(own))},{own.strip()},{memory.strip()}]"'
    if is_local(spark):
        return f'--master "local[{wanted}]"'
    if master.startswith("spark://"):
        return f"--total-executor-cores {wanted}"
    return f"--num-executors {-(-wanted // each)} --executor-cores {each}"


def is_dynamic(spark: Any) -> bool:
    """Whether it gives and takes executors as it goes."""
    return setting(spark, "spark.dynamicAllocation.enabled", "false").lower() == "true"


def slots_of(spark: Any) -> int:
    """How many tasks this Spark can run at the same time."""
    context = spark.sparkContext._jsc.sc()
    # The scheduler's own count, the one its barrier check uses. Not public in Scala, but there since 2.4.
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def settled_slots(spark: Any) -> int:
    """The same, once it has those that it was asked for, or no longer grows: executors of a cluster that was just started come one by
    one.
    """
    have, since, began, asked = slots_of(spark), time.monotonic(), time.monotonic(), asked_slots(spark)
    young = time.time() * 1000 - spark.sparkContext.startTime < SLOTS_WAIT_S * 1000
    while not is_local(spark) and time.monotonic() - began < SLOTS_WAIT_S:
        settled = have >= asked if asked else time.monotonic() - since >= SETTLED_S
        if have and (settled or not young):
            break
        time.sleep(0.05)
        now = slots_of(spark)
        if now != have:
            have, since = now, time.monotonic()
    return have


def asked_slots(spark: Any) -> int:
    """How many slots Spark was asked for when it was started; 0 where that does not say it."""
    master = str(spark.sparkContext.master)
    if master.startswith("local-cluster["):
        executors, each, _ = master.removeprefix("local-cluster[").split(",")
        return int(executors) * int(each)
    return int(setting(spark, "spark.executor.instances", "0")) * int(setting(spark, "spark.executor.cores", "1"))


def slots_in_time(spark: Any, wanted: int) -> int:
    """As many as there are within some time, or `wanted` as soon as there are."""
    until = time.monotonic() + SLOTS_WAIT_S
    while (have := slots_of(spark)) < wanted and not is_local(spark) and time.monotonic() < until:
        time.sleep(0.05)
    return have


def free_slots(spark: Any) -> int:
    """How many of them are not running anything now."""
    return slots_of(spark) - sum(int(info.numRunningTasks()) for info in executors(spark))


def held_slots(spark: Any, groups: Sequence[str]) -> int:
    """How many of them run tasks of these groups of jobs, as far as Spark knows: also those of an executor that is cut off."""
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for group in groups for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(int(stage.numActiveTasks) for stage in stages if stage is not None)


def wait_for_slots(
    spark: Any, wanted: int, *, runner: str = "Continuous", within_s: float = SLOTS_WAIT_S, earlier: Sequence[str] = ()
) -> None:
    """Until `wanted` slots are free: tasks of a failed attempt hold theirs for some seconds. RunnerError if they stay busy.

    Args:
        earlier: the groups of this job's own earlier attempts.
    """
    until = time.monotonic() + within_s
    while (free := free_slots(spark)) < wanted:
        if time.monotonic() > until:
            have = slots_of(spark)
            if have < wanted:
                raise too_few_slots(spark, wanted, have, runner)
            raise busy_slots(spark, wanted, have, have - free, min(held_slots(spark, earlier), have - free), runner)
        time.sleep(0.05)


def busy_slots(spark: Any, wanted: int, have: int, busy: int, held: int, runner: str) -> RunnerError:
    """What is wrong with a Spark that is large enough and has not enough slots free; `held`: by earlier attempts of this very job."""
    found = f"{runner} needs {wanted} slots at the same time, and of the {have} this Spark has ({spark.sparkContext.master})"
    if not held:
        more = cores(spark, wanted + busy)
        return RunnerError(
            f"{found} {busy} are busy with other jobs",
            fix=Fix("slots.busy", f"Use parallelism={max(have - busy, 1)}, or start Spark with more cores: {more}"),
        )
    found += f" {held} {'is' if held == 1 else 'are'}"
    others = f", and {busy - held} are busy with other jobs" if busy > held else ""
    return RunnerError(
        f"{found} held by an earlier attempt of this job, on an executor that does not answer{others}",
        fix=Fix(
            "slots.held",
            "Spark frees them once it gives the executor up (spark.network.timeout, 120 s), and the job goes on. "
            f"To go on at once, give it spare cores: {cores(spark, have + held)}",
        ),
    )


def executors(spark: Any) -> list[Any]:
    """What Spark knows of its executors (in local mode: of itself)."""
    return list(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos())


def hosts_of(spark: Any) -> set[str]:
    """Where executors are."""
    return {str(info.host()) for info in executors(spark)}


def own_hosts(spark: Any) -> set[str]:
    """The names of this machine."""
    name = socket.gethostname()
    names = {"127.0.0.1", "localhost", "::1", name, socket.getfqdn(), setting(spark, "spark.driver.host", "localhost")}
    with contextlib.suppress(OSError):  # a machine that cannot resolve its own name has the other ones
        names |= {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    return names


def is_local(spark: Any) -> bool:
    """Whether driver and executors are one process on one machine."""
    return str(spark.sparkContext.master).split("[")[0] == "local"


def setting(spark: Any, key: str, default: str) -> str:
    """A setting of the Spark application."""
    return str(spark.sparkContext.getConf().get(key, default))
