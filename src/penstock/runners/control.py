"""The control socket of a running job: how another process of the same user asks how it is, or tells it to stop.

A job with storage listens on a unix socket. `control.json` in the job's folder says where it is, and the secret that opens it::

    {"host": "build-7", "path": "/var/lib/penstock/ad-counts/control-9b1e03aa.sock", "pid": 4711, "token": "64 hex digits"}

A request is one line of JSON, and so is its answer; a connection may carry several::

    {"token": "…", "verb": "savepoint", "args": {"path": "/backup/before-upgrade", "timeout": "5m"}}
    {"ok": true, "result": "/backup/before-upgrade"}

1. Whoever can read `control.json` may command the job: it and the socket are 0600. A wrong token is told so, and no more.
2. The file appears, as a whole, once the job holds its lock: a job started twice never hides the first. It goes at the end. What
   a killed job left behind names a socket on which nobody listens, and counts as none.
3. Longer lines than `REQUEST_BYTES_MAX` and more connections than `CONNECTIONS_MAX` are refused; silence ends after `IDLE_S`.
4. `stop` and `cancel` are answered at once; `wait` when the job has ended. A job that cannot listen runs all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import errors
from penstock.checkpoints.log import Log
from penstock.checkpoints.manifest import Manifest
from penstock.checkpoints.storage import LocalStore, folder_of, open_store
from penstock.errors import ConfigError, Fix, JobError, PenstockError
from penstock.eventtime import micros, time_text
from penstock.names import check_name
from penstock.protocol import coordinator as c
from penstock.runners.options import resolve
from penstock.runners.status import Status

if TYPE_CHECKING:
    from penstock.runners.job import Job

__all__ = ["AttachedJob", "ControlSocket", "attach", "job_folder", "newest_in", "stored_text"]

log = logging.getLogger("penstock")

FILE = "control.json"
FOLDER = "penstock-control-"
REQUEST_BYTES_MAX = 1 << 16
ANSWER_BYTES_MAX = 1 << 24
CONNECTIONS_MAX = 16
IDLE_S = 10.0
DRAIN_S = 2.0  # at the end: for answers under way
PATH_BYTES_MAX = 100  # of a unix socket: 108 on Linux and 104 elsewhere, with the closing zero
STARTING_S = 2.0  # how long `attach` waits for a job that is just being started


class ControlSocket:
    """The listening end. `open` and `close` never raise."""

    def __init__(self, job: Job, job_dir: Path) -> None:
        self._job, self._dir = job, job_dir
        self._token = secrets.token_hex(32)
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._folder: Path | None = None  # of our own, where the job's folder has too long a name
        self._closing = False
        self._guard = threading.Lock()
        self._handlers: dict[threading.Thread, socket.socket] = {}

    def open(self) -> None:
        """Listen, and say where. Only for the holder of the job's lock: what an earlier holder left is removed."""
        try:
            self._clear()
            self._listener = self._listen()
            about = {"host": socket.gethostname(), "path": str(self._path), "pid": os.getpid(), "token": self._token}
            write_private(self._dir / FILE, json.dumps(about, sort_keys=True).encode() + b"\n")
        except OSError as error:
            log.warning("the job %s cannot be attached to: no control socket (%s)", self._job.name, error)
            self._remove()
            return
        threading.Thread(target=self._accept, name="penstock-control-socket", daemon=True).start()

    def close(self) -> None:
        """Let answers under way go out, and leave nothing behind."""
        self._closing = True
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError, PenstockError):
                if (read_control(self._dir) or {}).get("token") == self._token:  # and not already a successor's
                    (self._dir / FILE).unlink()
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        until = time.monotonic() + DRAIN_S
        with self._guard:
            handlers = list(self._handlers.items())
        for handler, connection in handlers:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # no more requests, but answers may still go out
            handler.join(max(0.0, until - time.monotonic()))
        self._remove()

    def _listen(self) -> socket.socket:
        name = f"control-{secrets.token_hex(4)}.sock"
        with contextlib.suppress(OSError):  # too long a path, or a file system without sockets
            return self._bind(self._dir / name)
        self._folder = Path(tempfile.mkdtemp(prefix=FOLDER))  # 0700
        return self._bind(self._folder / name)

    def _bind(self, path: Path) -> socket.socket:
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise OSError(f"{path} is too long for a socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            os.chmod(path, 0o600)  # before anybody can connect
            listener.listen(CONNECTIONS_MAX)
        except OSError:
            listener.close()
            path.unlink(missing_ok=True)
            raise
        self._path = path
        return listener

    def _clear(self) -> None:
        """Remove the sockets of holders that were killed."""
        for old in self._dir.glob("control-*.sock"):
            old.unlink()
        with contextlib.suppress(OSError, PenstockError):
            folder = Path((read_control(self._dir) or {"path": ""})["path"]).parent
            if folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(FOLDER):
                for old in folder.glob("control-*.sock"):
                    old.unlink()
                folder.rmdir()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if self._path is not None:
                self._path.unlink(missing_ok=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # The thread that accepts, and one for each connection.

    def _accept(self) -> None:
        while not self._closing and (listener := self._listener) is not None:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(0.05)  # the end; or out of file descriptors, which may pass
                continue
            connection.settimeout(IDLE_S)
            handler = threading.Thread(target=self._serve, args=(connection,), name="penstock-control-request", daemon=True)
            with self._guard:
                busy = len(self._handlers) >= CONNECTIONS_MAX
                if not busy:
                    self._handlers[handler] = connection
            if busy:
                connection.settimeout(0.2)
                with contextlib.suppress(OSError):
                    send(connection, refusal(JobError(f"{CONNECTIONS_MAX} others are talking to this job just now")))
                connection.close()
            else:
                self._begin(handler, connection)

    def _begin(self, handler: threading.Thread, connection: socket.socket) -> None:
        try:
            handler.start()
        except RuntimeError:  # no more threads in this process, which may pass: this connection ends, and others are let in
            with self._guard:
                del self._handlers[handler]
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
                while line := lines.readline(REQUEST_BYTES_MAX + 1):
                    answer, stay = self._answer(line)
                    send(connection, answer)
                    if not stay:
                        return
        finally:
            with self._guard:
                self._handlers.pop(threading.current_thread(), None)

    def _answer(self, line: bytes) -> tuple[dict[str, Any], bool]:
        """The answer to a request, and whether to hear more from there."""
        if len(line) > REQUEST_BYTES_MAX or not line.endswith(b"\n"):
            return refusal(JobError(f"a request is one line of {REQUEST_BYTES_MAX} bytes at most")), False
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return refusal(JobError("a request is one line of JSON")), False
        token = request.get("token") if isinstance(request, dict) else None
        if not isinstance(token, str) or not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return refusal(JobError("wrong token: nothing was done")), False
        verb, args = request.get("verb"), request.get("args", {})
        try:
            return {"ok": True, "result": self._do(verb, args)}, True
        except PenstockError as error:
            return refusal(error), True
        except Exception as error:  # a mistake of ours must not look like a job that is gone
            log.exception("control request %r failed", verb)
            return refusal(JobError(f"{type(error).__name__}: {error}")), True

    def _do(self, verb: object, args: object) -> Any:
        job = self._job
        match verb, args:
            case "status", {**rest} if not rest:
                return dataclasses.asdict(job.status())
            case "metrics", {**rest} if not rest:
                return job.metrics()
            case "savepoint", {"path": str(path), "timeout": str(timeout), **rest} if not rest:
                if "\0" in path or not os.path.isabs(path):
                    raise ConfigError(f"a savepoint needs an absolute path here, not {path!r}")
                return str(job.savepoint(path, timeout=timeout))
            case "stop", {"finish": bool(finish), **rest} if not rest:
                job.conductor.post(c.StopAsked(finish))
                return None
            case "cancel", {**rest} if not rest:
                job.conductor.cancel()
                return None
            case "wait", {"within_s": float() | int() | None as within_s, **rest} if not rest:
                return {"ended": job.conductor.halted.wait(within_s), "status": dataclasses.asdict(job.status())}
        verbs = "status {}, metrics {}, savepoint {path, timeout}, stop {finish}, cancel {}, wait {within_s}"
        raise JobError(f"there is no request {str(verb)[:40]!r} with such arguments. Requests: {verbs}")


class AttachedJob:
    """A job that runs in another process of this machine: the same methods as `Job`. Made by `attach`."""

    def __init__(self, name: str, job_dir: Path, control: dict[str, Any]) -> None:
        self._name, self._dir, self._control = name, job_dir, control

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self._name

    def status(self) -> Status:
        """State, epoch, watermark, restarts, guarantee."""
        return status_of(self._ask("status"))

    def metrics(self) -> list[dict[str, Any]]:
        """A row per step: rows read, in, out, late and dead, over all tasks of the attempt as last reported."""
        return list(self._ask("metrics"))

    def savepoint(self, path: str | Path, *, timeout: Any = "5m") -> Path:
        """A self-contained folder to start from again; the job goes on. A relative path is relative to this process."""
        within_s = micros(timeout, "timeout") / 1e6
        store = open_store(path if isinstance(path, Path) else str(path))
        assert isinstance(store, LocalStore), "there are only local stores"
        return Path(self._ask("savepoint", wait_s=within_s + IDLE_S, path=str(store.root), timeout=f"{within_s}s"))

    def stop(self, *, finish: bool = False, timeout: Any = None) -> None:
        """One last snapshot, committed; can be resumed. `finish=True` also closes every window, and is the end."""
        self._wait(timeout, ("stop", {"finish": finish}))

    def cancel(self) -> None:
        """Stop at once. The next start commits what was published."""
        self._wait(None, ("cancel", {}))

    def wait(self, *, timeout: Any = None) -> None:
        """Until the job has ended. Raises JobError if it failed, or if it is still running after `timeout`."""
        self._wait(timeout)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        with contextlib.suppress(JobError):
            self._ask("status")
            return False
        return True

    def _wait(self, timeout: Any, *before: tuple[str, dict[str, Any]]) -> None:
        """Send `before`, and in one go the request to wait: once they are carried out the job may be gone at any moment."""
        within_s = None if timeout is None else micros(timeout, "timeout") / 1e6
        with self._connect() as line:
            line.settimeout(None if within_s is None else within_s + IDLE_S)
            try:
                answer = ask(line, self._control["token"], *before, ("wait", {"within_s": within_s}))
            except OSError:
                raise JobError(f"the process that ran {self.name!r} is gone, without a word. {stored_text(self._dir)}") from None
        status = status_of(answer["status"])
        if not answer["ended"]:
            raise JobError(f"the job {self.name!r} is still running after {timeout}")
        if status.state in ("failed", "superseded"):
            raise JobError(f"the job {self.name!r} {status.state}: {status.error}")

    def _connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(IDLE_S)
        try:
            line.connect(self._control["path"])
        except OSError:
            line.close()
            raise not_running(self.name, self._dir, self._control) from None
        return line

    def _ask(self, verb: str, wait_s: float = IDLE_S, **args: Any) -> Any:
        with self._connect() as line:
            line.settimeout(wait_s)
            try:
                return ask(line, self._control["token"], (verb, args))
            except OSError:
                raise not_running(self.name, self._dir, self._control) from None


def attach(name: str, storage: str | Path | None = None) -> AttachedJob:
    """A job that another process of this machine runs, by its name and storage.

        job = pen.attach("ad-counts", storage="checkpoints")
        job.status().epoch
        job.stop()

    Args:
        storage: as given to the runner; left out, as the environment or penstock.toml says.
    """
    job_dir = job_folder(name, storage)
    until = time.monotonic() + (STARTING_S if holder_lives(job_dir) else 0.0)
    while (control := read_control(job_dir)) is None:
        if time.monotonic() >= until:
            raise not_running(name, job_dir)
        time.sleep(0.05)
    (job := AttachedJob(name, job_dir, control))._connect().close()
    return job


# What is known without a running job.


def job_folder(name: str, storage: str | Path | None) -> Path:
    """Where the checkpoints of a job are. The name must be one: it becomes part of a path."""
    check_name(name, "a pipeline")
    chosen = resolve(name, {} if storage is None else {"storage": str(storage)}).storage
    if chosen is None:
        raise ConfigError(
            f"where is the storage of {name!r}? Neither an option nor PENSTOCK_STORAGE nor penstock.toml says it",
            fix=Fix(
                "control.storage",
                "Say it to the command (--storage checkpoints), or to all of them (PENSTOCK_STORAGE=checkpoints). "
                'Write: storage="checkpoints"',
            ),
        )
    return folder_of(chosen) / name


def newest_in(job_dir: Path) -> Manifest | None:
    """The newest published checkpoint of a job, running or not; None if it has none. Nothing is claimed or changed."""
    found = Log(open_store(job_dir)).read_newest() if job_dir.is_dir() else None
    return None if found is None else found.manifest


def stored_text(job_dir: Path) -> str:
    """What storage knows of a job, as a sentence."""
    try:
        newest = newest_in(job_dir)
    except PenstockError as error:
        return f"Its checkpoints cannot be read: {error}"
    if newest is None:
        others = sorted(path.parent.name for path in job_dir.parent.glob("*/log"))
        return f"Storage {job_dir.parent} has no checkpoint of it. Jobs there: {', '.join(others) or 'none'}"
    by = f"by runner {newest.runner} at {time_text(newest.created_us)} UTC"
    rest = "it is finished" if newest.finished else "the next start goes on from there"
    return f"Its newest published epoch is {newest.epoch}, {by}; {rest}"


def not_running(name: str, job_dir: Path, control: dict[str, Any] | None = None) -> JobError:
    """The words for a job that does not answer."""
    host = socket.gethostname()
    if control is not None and control["host"] != host:
        return JobError(f"the job {name!r} was started on {control['host']}, and this is {host}: it can be controlled only there")
    return JobError(f"no job {name!r} is running here. {stored_text(job_dir)}")


def holder_lives(job_dir: Path) -> bool:
    """Whether the process that last locked the job is still there: it may be about to listen."""
    try:
        about = json.loads((job_dir / "lock").read_bytes()[:REQUEST_BYTES_MAX])
        os.kill(about["pid"], 0)  # sends nothing: only asks whether it is there
        return bool(about["host"] == socket.gethostname())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, OverflowError):
        return False


def read_control(job_dir: Path) -> dict[str, Any] | None:
    """What `control.json` says; None if there is none. One that others could have written is refused."""
    try:
        file = os.open(job_dir / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JobError(f"cannot read {job_dir / FILE}: {error.strerror}. Only the user who runs the job can attach") from None
    with open(file, "rb") as opened:
        about = os.fstat(file)
        if about.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
            raise JobError(f"{job_dir / FILE} belongs to another user: it is not trusted")
        data = opened.read(REQUEST_BYTES_MAX)
    try:
        found = json.loads(data)
        kinds = {"host": str, "path": str, "pid": int, "token": str}
        if all(isinstance(found[key], kind) for key, kind in kinds.items()):
            return {key: found[key] for key in kinds}
    except (ValueError, RecursionError, KeyError, TypeError):
        pass
    raise JobError(
        f"{job_dir / FILE} is damaged",
        fix=Fix("control.damaged", "Stop the job with Ctrl-C; the next start writes the file anew"),
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user can read, as a whole."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "wb") as opened:
            opened.write(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


# Lines of JSON.


def send(line: socket.socket, message: dict[str, Any]) -> None:
    """One message."""
    line.sendall(json.dumps(message).encode() + b"\n")


def ask(line: socket.socket, token: str, *requests: tuple[str, dict[str, Any]]) -> Any:
    """Ask, and return the last result; raises what the job refused with, OSError if it is gone."""
    said = b"".join(json.dumps({"token": token, "verb": verb, "args": args}).encode() + b"\n" for verb, args in requests)
    with contextlib.suppress(BrokenPipeError):  # turned away before we could ask: the reason is there to read
        line.sendall(said)
    answer: dict[str, Any] = {}
    with line.makefile("rb") as lines:
        for _ in requests:
            data = lines.readline(ANSWER_BYTES_MAX)
            if not data.endswith(b"\n"):
                raise ConnectionResetError("the job hung up")
            answer = json.loads(data)
            if not answer["ok"]:
                kind = answer["kind"] if answer["kind"] in errors.__all__ else "JobError"
                raise getattr(errors, kind)(answer["error"])
    return answer["result"]


def refusal(error: PenstockError) -> dict[str, Any]:
    """An error as an answer."""
    return {"ok": False, "kind": type(error).__name__, "error": str(error)}


def status_of(answer: dict[str, Any]) -> Status:
    """A status from its JSON."""
    return Status(**{**answer, "guarantee": tuple(answer["guarantee"])})
