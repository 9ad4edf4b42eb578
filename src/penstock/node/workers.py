"""``penstock serve --workers N``: a small process that starts others and keeps them.

One process of Python uses one core. So there are N of them behind one address: each an ordinary
node of a cluster that has this machine to itself, and one more process with the metadata, in place
of an etcd. All listen for SQS on the same port, and the kernel gives each connection to one of
them; whoever is asked finds the leader of a partition, as in any cluster. For Kafka, whose clients
look for leaders themselves, each has a port of its own.

This process serves nothing and holds no messages. It keeps ports for the others, starts them, says
``ready`` when all are, starts again who dies, hands signals on, and goes last. When it is killed,
the kernel kills the others with it: what was answered is on their disks, and processes without
anybody who looks after them would stand in the way of the next start.

What each of them is started with is decided in ``worker_plan.py``.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.model.errors import PenstockError, SetupError
from penstock.node import worker_plan as plan
from penstock.node.addresses import Place, parse_listen
from penstock.node.binding import binding
from penstock.node.config import KAFKA_LISTEN_DEFAULT, KAFKA_OFF, Config
from penstock.node.exposure import is_auth_on
from penstock.node.folder import DataFolder
from penstock.node.keyring import KMS_NAME, MASTER_NAME, MASTER_VARIABLE, start_key_ring
from penstock.node.service_manager import READY, STOPPING, ServiceManager
from penstock.node.settings import Loaded
from penstock.node.start_errors import explained
from penstock.node.worker_plan import Addresses, Pauses
from penstock.node.worker_secret import SECRET_ENV, draw_secret, pipe_with

PR_SET_PDEATHSIG: Final = 1
STOP_SECONDS_MAX: Final = 30.0  # beyond node.drain_ms, for one that was told to stop
LINE_BYTES_MAX: Final = 65_536  # of what a process says on its standard output
READ_BYTES: Final = 65_536

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

log_ = logging.getLogger(__name__)

Hints = Callable[[str], Sequence[str]]  # by the URL of the endpoint


class NotStarted(SetupError):
    """One of the processes ended before it was ready; it has said why by itself."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.do = "see the error of that process above"


def serve(
    loaded: Loaded[Config],
    flags: Mapping[str, object],
    *,
    config_file: str | None,
    hints: Hints | None = None,
    manager: ServiceManager,
) -> int:
    """Returns the exit code. ``flags`` were given to this process, by dotted key. Raises
    SetupError."""
    config = loaded.config
    folder = Path(config.node.data)
    try:
        auth = is_auth_on(config)
        before = plan.check_folder(folder, config.node.workers)
        taken = DataFolder(folder)
        settings = plan.shared_settings(is_auth_on=auth) | plan.partition_settings(loaded)
        settings |= _share_master(config, folder)
        with contextlib.ExitStack() as held:
            at = _hold_addresses(config, held)
            plan.write_marker(folder, config.node.workers)
            children = _children(config, at, settings, flags, config_file, draw_secret())
            supervisor = Supervisor(
                children,
                stop_seconds_max=STOP_SECONDS_MAX + config.node.drain_ms / 1_000,
                # The first start of all makes the first user, and only one may.
                is_first_alone=auth and not before,
                hints=hints,
                manager=manager,
            )
            code = asyncio.run(supervisor.run())
    except (PenstockError, OSError) as error:
        raise explained(error) from error
    taken.release()
    return code


def _children(
    config: Config,
    at: Addresses,
    shared: Mapping[str, str],
    flags: Mapping[str, object],
    config_file: str | None,
    secret: bytes,
) -> "list[Child]":
    """The metadata first."""
    folder, name = Path(config.node.data), config.node.name or platform.node()
    everybody = [(plan.METADATA, plan.metadata_settings(folder, name, at))]
    for worker in range(1, config.node.workers + 1):
        settings = plan.worker_settings(config, worker, folder, name, at)
        everybody.append((f"worker {worker}", settings))
    return [
        Child(
            who,
            [sys.executable, "-m", "penstock", "serve", *plan.arguments(settings, config_file)],
            plan.environment({**shared, **settings}, flags, os.environ),
            secret=secret,
        )
        for who, settings in everybody
    ]


def _share_master(config: Config, folder: Path) -> dict[str, str]:
    """One key for all of them: the one that is given, or one that is made here once. Raises
    KeyRingUnusable."""
    keys = config.keys
    asyncio.run(start_key_ring(keys, folder, env=os.environ))
    made = folder / MASTER_NAME
    if keys.kms_command:
        # Wrapped by the service: each opens it for itself.
        for worker in range(1, config.node.workers + 1):
            own = plan.worker_folder(folder, worker)
            own.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / KMS_NAME, own / KMS_NAME)
    elif not keys.master_file and not os.environ.get(MASTER_VARIABLE):
        return {"keys.master_file": str(made)}
    if not made.exists():
        return {}
    # From before another one was given: what it has sealed is still there.
    old = [keys.old_master_files] if keys.old_master_files else []
    return {"keys.old_master_files": ",".join([*old, str(made)])}


# ── Addresses ────────────────────────────────────────────────────────────────────────────────


def _hold_addresses(config: Config, held: contextlib.ExitStack) -> Addresses:
    """Ports are kept by sockets that never listen: nobody else is given them while a worker is
    away. Raises SetupError when one that was asked for by name is taken."""
    host, port = parse_listen(config.http.listen)
    with binding("SQS", "--http", host, port):
        http = _hold(held, host, port, is_shared=True)
    workers = range(config.node.workers)

    def any_free() -> str:
        return str(_hold(held, plan.LOOPBACK, 0))

    return Addresses(
        http=str(http),
        kafka=_hold_kafka(config, held),
        admin=[_hold_admin(config, http, held), *(any_free() for _ in workers[1:])],
        internal=[any_free() for _ in workers],
        metadata=any_free(),
        metadata_admin=any_free(),
    )


def _hold_kafka(config: Config, held: contextlib.ExitStack) -> Sequence[str]:
    listen = config.kafka.listen
    if listen == KAFKA_OFF:
        return [KAFKA_OFF] * config.node.workers
    if listen:
        places = []
        for wish in plan.kafka_wishes(config, *parse_listen(listen)):
            with binding("Kafka", "--kafka", *wish):
                places.append(str(_hold(held, *wish)))
        return places
    host, port = KAFKA_LISTEN_DEFAULT
    _, http_port = parse_listen(config.http.listen)
    if http_port:
        with contextlib.suppress(OSError), contextlib.ExitStack() as trying:
            wishes = plan.kafka_wishes(config, host, port)
            found = [str(_hold(trying, *wish)) for wish in wishes]
            held.push(trying.pop_all())
            return found
    # Nobody asked for those ports by name.
    return [str(_hold(held, host, 0)) for _ in range(config.node.workers)]


def _hold_admin(config: Config, http: Place, held: contextlib.ExitStack) -> str:
    if config.admin.listen:
        host, port = parse_listen(config.admin.listen)
        with binding("admin API", "--admin", host, port):
            return str(_hold(held, host, port))
    _, asked = parse_listen(config.http.listen)
    if asked and http.port < 65_535:
        with contextlib.suppress(OSError):
            return str(_hold(held, http.host, http.port + 1))
    return str(_hold(held, http.host, 0))


def _hold(held: contextlib.ExitStack, host: str, port: int, *, is_shared: bool = False) -> Place:
    """``is_shared``: several processes will listen there. Whether others do already can only be
    seen by a socket that would not share."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as alone:
            _prepare(alone, family, is_shared=False)
            alone.bind(address)
            bound = alone.getsockname()
            if not is_shared:
                keeping = alone.dup()
        if is_shared:
            keeping = socket.socket(family, kind, proto)
            _prepare(keeping, family, is_shared=True)
            keeping.bind(bound)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise
        raise OSError(error.errno, f"{error.strerror}: {Place(host, port)}") from error
    held.enter_context(keeping)
    return Place(host, bound[1])


def _prepare(one: socket.socket, family: int, *, is_shared: bool) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


# ── Processes ────────────────────────────────────────────────────────────────────────────────


class Child:
    """One of the processes, from start to end and again."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, secret: bytes
    ) -> None:
        """``secret``: what the processes prove to each other; each start passes it on again."""
        self.name = name
        self.is_ready = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.has_ended.set()
        self.ready_line = ""
        self.how = ""  # it ended
        self.code = 0
        self.served_ms = 0  # of the run that has ended
        self._command = command
        self._env = {**env, **SECRET_ENV}
        self._secret = secret
        self._line = b""
        self._process: subprocess.Popen[bytes]
        self._descriptor = -1
        self._ready_at = 0.0

    def start(self) -> None:
        """Raises OSError."""
        assert self.has_ended.is_set(), "one at a time"
        parent, libc = os.getpid(), ctypes.CDLL(None)  # loaded before the fork

        def end_with_parent() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it was faster
                os._exit(EXIT_FAILED)

        secret_pipe = pipe_with(self._secret)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this very program
                self._command,
                stdin=secret_pipe,
                stdout=subprocess.PIPE,
                env=self._env,
                start_new_session=True,  # a Ctrl-C is for this process, which hands it on in order
                preexec_fn=end_with_parent,  # there are no threads here
            )
        finally:
            os.close(secret_pipe)
        self.is_ready.clear()
        self.has_ended.clear()
        self.ready_line, self._line, self._ready_at = "", b"", 0.0
        # As long as it has not been waited for, its number cannot be another's.
        self._descriptor = os.pidfd_open(self._process.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, self._ended)
        loop.add_reader(self._stdout(), self._said)

    def _stdout(self) -> int:
        assert self._process.stdout is not None, "started with a pipe"
        return self._process.stdout.fileno()

    def send(self, number: signal.Signals) -> None:
        if not self.has_ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _said(self) -> None:
        told = os.read(self._stdout(), READ_BYTES)
        if not told:
            asyncio.get_running_loop().remove_reader(self._stdout())
            return
        *lines, rest = (self._line + told).split(b"\n")
        self._line = rest[-LINE_BYTES_MAX:]
        for line in lines:
            self._heard(line.decode("utf-8", "replace"))

    def _heard(self, line: str) -> None:
        if self.ready_line or not line.startswith("ready "):
            print(line, flush=True)  # noqa: T201 - the first key, which is shown once
            return
        self.ready_line = line
        self._ready_at = asyncio.get_running_loop().time()
        self.is_ready.set()

    def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        code = self.code = self._process.wait()
        self.how = f"code {code}" if code >= 0 else f"signal {-code}"
        if self._process.stdout is not None:
            loop.remove_reader(self._stdout())
            self._process.stdout.close()
        now = loop.time()
        self.served_ms = int((now - self._ready_at) * 1_000) if self._ready_at else 0
        self.is_ready.clear()
        self.has_ended.set()

    async def ready(self) -> None:
        """Raises NotStarted."""
        ready = asyncio.create_task(self.is_ready.wait())
        ended = asyncio.create_task(self.has_ended.wait())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            ended.cancel()
        if not self.ready_line:
            raise NotStarted(f"{self.name} ended with {self.how} before it was ready")


class Supervisor:
    def __init__(
        self,
        children: Sequence[Child],
        *,
        stop_seconds_max: float,
        is_first_alone: bool,
        manager: ServiceManager,
        hints: Hints | None = None,
    ) -> None:
        """``children``: the metadata and then the workers."""
        self._metadata, *self._workers = children
        self._stop_seconds_max = stop_seconds_max
        self._is_first_alone = is_first_alone
        self._hints = hints
        self._manager = manager
        self._stop: asyncio.Event
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def _all(self) -> Sequence[Child]:
        return [*self._workers, self._metadata]

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._hand_on, signal.SIGHUP)
        starting = asyncio.create_task(self._start())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                log_.info("stopped before everything was ready")
            elif starting.exception() is None:
                self._announce()
                await stopped
        finally:
            starting.cancel()
            stopped.cancel()
            is_clean = await self._end()
        if starting.done() and not starting.cancelled() and (error := starting.exception()):
            raise error
        return EXIT_OK if is_clean else EXIT_FAILED

    # ── Start ────────────────────────────────────────────────────────────────────────────────

    async def _start(self) -> None:
        """Returns when all are ready. Raises NotStarted."""
        await self._start_some([self._metadata])
        if self._is_first_alone:
            await self._start_some(self._workers[:1])
            await self._start_some(self._workers[1:])
        else:
            await self._start_some(self._workers)
        self._keepers = [
            asyncio.create_task(self._keep(child), name=f"keep {child.name}") for child in self._all
        ]

    async def _start_some(self, children: Sequence[Child]) -> None:
        for child in children:
            child.start()
        await asyncio.gather(*(child.ready() for child in children))

    def _announce(self) -> None:
        """As a single process does: what clients are told to use is the first worker's."""
        line = self._workers[0].ready_line
        url = next((part[5:] for part in line.split() if part.startswith("http=")), "")
        log_.info("workers are ready", extra={"workers": len(self._workers)})
        hints = () if self._hints is None else self._hints(url)
        print("\n".join([line, *hints]), flush=True)  # noqa: T201
        self._manager.tell(READY)

    # ── While they serve ─────────────────────────────────────────────────────────────────────

    async def _keep(self, child: Child) -> None:
        """Started again for as long as this goes on. Its partitions wait for it meanwhile."""
        pauses = Pauses()
        while True:
            await child.has_ended.wait()
            pause_ms = pauses.next_ms(child.served_ms)
            log_.error(
                "a process has ended: it is started again",
                extra={"who": child.name, "how": child.how, "pause_ms": pause_ms},
            )
            await asyncio.sleep(pause_ms / 1_000)
            try:
                child.start()
                await child.ready()
            except (NotStarted, OSError) as error:
                log_.warning("not started again yet", extra={"reason": str(error)})
            else:
                log_.info("a process is back", extra={"who": child.name})

    def _hand_on(self, number: signal.Signals) -> None:
        for child in self._all:
            child.send(number)

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            # Asked twice: whatever is committed is safe; do not keep the operator waiting.
            self._hand_on(signal.SIGKILL)
            os._exit(EXIT_FAILED)
        self._stop.set()

    async def _end(self) -> bool:
        """Workers first: they take leave of the metadata. Whether all ended by themselves."""
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers)
        log_.info("draining")
        self._manager.tell(STOPPING)
        is_clean = True
        for some in (self._workers, [self._metadata]):
            is_clean = await self._end_some(some) and is_clean
        log_.info("stopped")
        return is_clean

    async def _end_some(self, children: Sequence[Child]) -> bool:
        running = [child for child in children if not child.has_ended.is_set()]
        for child in running:
            child.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._stop_seconds_max):
                for child in running:
                    await child.has_ended.wait()
        except TimeoutError:
            for child in running:
                if not child.has_ended.is_set():
                    log_.error("it has to end now", extra={"who": child.name})
                    child.send(signal.SIGKILL)
            for child in running:
                await child.has_ended.wait()
        # By the signal itself: it had not got far enough to have anything to finish.
        return all(child.code in (EXIT_OK, -signal.SIGTERM) for child in running)
