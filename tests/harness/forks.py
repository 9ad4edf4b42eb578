"""``penstock`` commands in processes that are forked instead of started.

    popen = Forked([penstock_command(), "serve", ...], stdout=subprocess.PIPE, ...)

Of the CPU time in which a server or a command starts, most goes into importing modules: 1.0 s of a
server's start, 0.3 s of a short command. One process per test process imports them once. Each
command is a fork of that process: with arguments, environment, folder and pipes of its own, and a
child of the test process like any other. It runs the function that the installed command runs.

``FULL=1`` (``make faults``) starts the installed command each time, as a user does. So does a
command line that begins with another program, and an environment with other settings for the
interpreter or the loader of libraries.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import inspect
import io
import json
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.harness.full import FULL

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
REQUEST_BYTES_MAX = 1_000_000
RUN_SECONDS_MAX = 300.0  # only a hang takes so long
_READ_AT_START = ("LD_", "PYTHON", "MALLOC_", "OPENSSL_")
_UNBUFFERED = "PYTHONUNBUFFERED"


def penstock_command() -> str:
    return str(Path(sys.prefix) / "bin" / "penstock")


def is_forked(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a fork does the same as the command would: it has imported its modules before."""
    if FULL or sys.platform != "linux" or command[0] != penstock_command():
        return False
    names = {name for name in {*env, *os.environ} if name.startswith(_READ_AT_START)}
    return all(env.get(name) == os.environ.get(name) for name in names - {_UNBUFFERED})


class Forked(subprocess.Popen[Any]):
    """A command of ours; everything but its start is as in ``subprocess.Popen``."""

    def _execute_child(self, *values: Any) -> None:
        parameters = inspect.signature(subprocess.Popen._execute_child).parameters  # type: ignore[attr-defined]
        given = dict(zip(list(parameters)[1:], values, strict=True))
        env = os.environ if given["env"] is None else given["env"]
        command = [os.fspath(each) for each in given["args"]]
        if not is_forked(command, env):
            super()._execute_child(*values)  # type: ignore[misc]
            return
        ours = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        pipes = [number if number != -1 else standard for standard, number in enumerate(ours)]
        request = {
            "command": command,
            "env": dict(env),
            "cwd": os.fspath(given["cwd"] or Path.cwd()),
            "is_session": given["start_new_session"],
            "umask": _umask(),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        self.pid = _zygote(_kind(command)).fork(request, pipes)
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(
                given[name]
                for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            )
        )


def _umask() -> int:
    """Of this process; ``os.umask`` would have to change it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nUmask:")[2].split()[0], 8)


def run(
    command: Sequence[str], *, stdin: str = "", timeout: float = RUN_SECONDS_MAX, **rest: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and capture its output. ``stdin``: the text that it reads."""
    pipe = subprocess.PIPE
    with Forked(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe, **rest) as process:
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# ── The process that is forked ───────────────────────────────────────────────────────────────


PIPELINE, OTHER = "pipeline", "other"


def _kind(command: Sequence[str]) -> str:
    """Commands of the pipeline need other modules, which would make servers larger."""
    return PIPELINE if command[1:2] == [PIPELINE] else OTHER


class _Zygote:
    def __init__(self, kind: str) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno()), kind],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def fork(self, request: Mapping[str, Any], pipes: Sequence[int]) -> int:
        """Return the number of the new process, which is a child of this one."""
        libc = ctypes.CDLL(None)
        data = json.dumps(request).encode()
        with self._lock:
            # The process between the zygote and the new one ends: the new one becomes ours.
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(self._socket, [data], pipes)
                answer = self._socket.recv(16)
            finally:
                libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert answer, f"the process that is forked has ended with {self._process.poll()}"
        return int(answer)


_zygotes: dict[tuple[int, str], _Zygote] = {}  # by process and kind
_zygotes_lock = threading.Lock()


def _zygote(kind: str) -> _Zygote:
    with _zygotes_lock:
        key = os.getpid(), kind
        if key not in _zygotes:
            _zygotes[key] = _Zygote(kind)
        return _zygotes[key]


def _serve(requests: socket.socket) -> None:
    """Until the test process ends, which closes its end."""
    while True:
        data, pipes, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not data:
            return
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            _become(json.loads(data), pipes, requests, between=between)
        for number in pipes:
            os.close(number)
        os.waitpid(between, 0)


def _become(
    request: dict[str, Any], pipes: Sequence[int], requests: socket.socket, *, between: int
) -> NoReturn:
    code = 1
    try:
        while os.getppid() == between:
            time.sleep(0.001)  # until the process between has ended
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        requests.send(str(os.getpid()).encode())
        requests.close()
        _take(request, pipes)
        from penstock.cli.main import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    _end(code)


def _take(request: dict[str, Any], pipes: Sequence[int]) -> None:
    """Replace everything that belongs to a process: pipes, folder, environment, arguments."""
    if request["is_session"]:
        os.setsid()
    for standard, number in enumerate(pipes):
        os.dup2(number, standard)
    for number in {*pipes} - {0, 1, 2}:
        os.close(number)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.umask(request["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["files"])
    sys.argv = request["command"]
    is_unbuffered = _UNBUFFERED in os.environ
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8")  # noqa: SIM115
    for name, number, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        raw = open(number, "wb", 0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            raw,
            encoding="utf-8",
            errors=errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _end(code: int) -> NoReturn:
    """As the interpreter ends, without the parts that belong to the process that was forked."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, ends pools of them
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as the interpreter does
    os._exit(code)


def _import_all(kind: str) -> None:
    package = importlib.import_module("penstock.pipeline" if kind == PIPELINE else "penstock.cli")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(("penstock.cli.pipeline.", "penstock.cli.__")):
            importlib.import_module(module.name)
    if kind == PIPELINE:
        importlib.import_module("penstock.cli.pipeline.run")
    else:
        importlib.import_module("penstock.node.lifecycle")
    assert threading.active_count() == 1, "threads do not live on in a fork"


if __name__ == "__main__":
    _import_all(sys.argv[2])
    _serve(socket.socket(fileno=int(sys.argv[1])))
