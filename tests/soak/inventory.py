"""What a job has and what it leaves: processes, ports, temporary files, and files in its folders that nobody refers to.

Processes are ours if the run's token is in the environment they were started with: it is inherited by Spark's JVMs, their Python
daemons and workers, and still there when a parent has died. All read from /proc and the file system, with nothing of Penstock.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

TOKEN = "PENSTOCK_SOAK"
SPARKS_OWN = re.compile(
    r"home|(spark-|blockmgr-|liblz4-java|libzstd|libsnappy|snappy-|artifacts-|warehouse|pyspark-|penstock-ship-|connect).*"
    r"|\.[0-9a-f-]{36}\.sock"
)
"""What a Spark that was killed cannot remove (and the zip that executors get from it). One that ends by itself leaves none of it."""
DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SPARKS_SOCKET = re.compile(r"\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.sock")
"""Where Java, Spark's Python daemon, or its accumulators' server listened. Each removes its own when it ends in peace; whoever
is killed, or told to end after it listens and before it can be told, leaves it. Nothing of ours has such a name."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as /proc shows it."""

    pid: int
    parent: int
    born: str
    command: str

    @property
    def kind(self) -> str:
        """executor, jvm (of a driver), python (a daemon of Spark, or its worker), driver, or other."""
        if "CoarseGrainedExecutorBackend" in self.command:
            return "executor"
        if "SparkSubmit" in self.command or "spark-submit" in self.command:
            return "jvm"
        if "pyspark.daemon" in self.command or "penstock.runners.spark.daemon" in self.command:
            return "python"
        return "driver" if "soak.driver" in self.command else "other"


def process(pid: int) -> Process | None:
    """A process that is alive; None for one that is not, or only waits to be buried."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (OSError, IndexError):
        return None
    return None if stat[0] == "Z" else Process(pid, int(stat[1]), stat[19], command)


def processes(token: str) -> list[Process]:
    """All processes that were started with the token."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if wanted in environment.split(b"\0") and (each := process(int(entry))) is not None:
                found.append(each)
    return found


def workers(found: list[Process]) -> list[Process]:
    """The Python workers among processes: children of a daemon."""
    daemons = {each.pid for each in found if each.kind == "python"}
    return [each for each in found if each.kind == "python" and each.parent in daemons]


def executors(found: list[Process]) -> list[Process]:
    """The executor JVMs among processes."""
    return [each for each in found if each.kind == "executor"]


def jvm_of(found: list[Process], driver: int) -> Process | None:
    """The JVM of a driver."""
    return next((each for each in found if each.kind == "jvm" and each.parent == driver), None)


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """The (address, port) pairs on which processes listen; addresses as /proc/net writes them."""
    inodes = set()
    for pid in pids:
        try:
            for handle in os.scandir(f"/proc/{pid}/fd"):
                target = os.readlink(handle.path)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
        except OSError:
            continue
    return {(address, port) for address, port, inode in listeners() if inode in inodes}


def listeners() -> list[tuple[str, int, str]]:
    """(address, port, inode) of every TCP socket that listens."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, _, port = fields[1].rpartition(":")
                found.append((address, int(port, 16), fields[9]))
    return found


def temporary(folder: Path, *, killed: bool) -> list[str]:
    """What is left in a driver's temporary folder. `killed`: by a Spark that could not tidy up, so its own files are no news."""
    left = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [name for name in left if not (SPARKS_OWN.fullmatch(name) if killed else name == "home")]


def is_sparks_socket(path: Path, listened_on: set[str] | None = None) -> bool:
    """Whether a path is a socket of Spark's that nobody listens on any more: nothing but a name. `listened_on`: see there."""
    if not (SPARKS_SOCKET.fullmatch(path.name) and path.is_socket()):
        return False
    return str(path) not in (sockets_listened_on() if listened_on is None else listened_on)


def sockets_listened_on() -> set[str]:
    """The paths of all unix sockets that a process has open."""
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return {fields[7] for line in lines if len(fields := line.split(maxsplit=7)) == 8}


def named_after(pids: set[int], places: tuple[str, ...] = ("/tmp", "/dev/shm")) -> list[str]:
    """Entries of shared temporary folders that carry the number of one of our processes, or a JVM's record of it."""
    words = {str(pid) for pid in pids}
    found = []
    for place in places:
        for entry in os.scandir(place):
            inside = os.listdir(entry.path) if entry.name.startswith("hsperfdata") and entry.is_dir() else ()
            found += [f"{entry.path}/{name}" for name in inside if name in words]
            # A name that was drawn may hold any number: a socket of another Spark did hold that of a driver.
            if words & set(re.findall(r"\d+", DRAWN.sub("", entry.name))):
                found.append(entry.path)
    return sorted(found)


def unreferenced(job_dir: Path, sinks: list[Path]) -> list[str]:
    """Files of an ended job that no checkpoint names and no reader wants: by their paths."""
    manifests = [file.read_text(errors="replace") for file in (job_dir / "log").glob("*.json")]
    named = {name for text in manifests for name in re.findall(r"state/[0-9A-Za-z.-]+\.arrow", text)}
    left = [path for path in (job_dir / "state").glob("*") if f"state/{path.name}" not in named]
    left += [path for folder in ("spark", "staging") for path in (job_dir / folder).rglob("*")]
    left += list(job_dir.glob("control*")) + [path for path in (job_dir / "spark",) if path.exists()]
    left += [path for folder in ("log", "terms", "heads", "") for path in (job_dir / folder).glob("*tmp*")]
    for sink in sinks:
        left += [
            path for folder in ("_staging", "_rolled") for path in (sink / folder).rglob("*") if not is_empty_lineage(sink, path)
        ]
    return sorted(str(path) for path in left)


def is_empty_lineage(sink: Path, path: Path) -> bool:
    """Whether a path is the folder in which a lineage would stage its files, with nothing in it."""
    return path.parent.parent == sink and path.is_dir() and not any(path.iterdir())
