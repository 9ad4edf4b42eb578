"""``penstock serve --workers N``: a supervisor process that starts worker processes.

A Python process uses one core. To use more cores, N workers share one address. Each worker is a
node of a cluster on this machine; one more process keeps the metadata, so no etcd is needed. All
workers listen for SQS on the same port, and the kernel distributes connections among them; a worker
forwards a request to the leader of the partition. For Kafka each worker has its own port, because
Kafka clients connect to leaders themselves.

The supervisor reserves the ports, starts the processes, restarts processes that end, and passes
signals on. It is ready when all processes are. If it is killed, the kernel kills the workers."""

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.metadata.cache import abandon
from penstock.model.errors import SetupError
from penstock.net.child_process import start_child
from penstock.node import worker_plan as plan
from penstock.node.configuration.cluster_config import NodeAddress, parse_listen
from penstock.node.configuration.config import KAFKA_LISTEN_DEFAULT, KAFKA_OFF, Config
from penstock.node.configuration.exposure import is_auth_on
from penstock.node.configuration.settings import Loaded
from penstock.node.keys.keyring import KMS_NAME, MASTER_NAME, MASTER_VARIABLE, start_key_ring
from penstock.node.listening import binding
from penstock.node.process.folder import DataFolder
from penstock.node.process.node_setup import SECRET_ENV, draw_secret, pipe_with
from penstock.node.worker_plan import Addresses

STOP_SECONDS_MAX: Final = 30.0  # in addition to node.drain_ms, until a process is killed
LINE_BYTES_MAX: Final = 65_536  # of the output of a process
READ_BYTES: Final = 65_536  # all that a pipe holds

log_ = logging.getLogger(__name__)


class NotStarted(SetupError):
    """Raised if a process ended before it was ready. The process has printed its own error."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.do = "see the error of that process above"


async def make_supervisor(
    loaded: Loaded[Config], flags: Mapping[str, object], config_file: str | None
) -> "Supervisor":
    """Lock the data folder, reserve ports and plan the processes."""
    config = loaded.config
    folder, count = Path(config.node.data), config.node.workers
    auth = is_auth_on(config)
    before = plan.check_folder(folder, count)
    held = contextlib.ExitStack()
    held.callback(DataFolder(folder).release)
    settings = plan.shared_settings(is_auth_on=auth) | plan.partition_settings(loaded)
    settings |= await _share_master(config, folder)
    at = _hold_addresses(config, held)
    plan.write_marker(folder, count)
    name, secret = config.node.name or platform.node(), draw_secret()
    processes = {plan.METADATA: plan.metadata_settings(folder, name, at)}
    for worker in range(1, count + 1):
        processes[f"worker {worker}"] = plan.worker_settings(config, worker, folder, name, at)
    command = [sys.executable, "-m", "penstock", "serve"]
    return Supervisor(
        [
            Child(
                what,
                [*command, *plan.arguments(own, config_file)],
                plan.environment({**settings, **own}, flags, os.environ),
                secret=secret,
            )
            for what, own in processes.items()
        ],
        stop_seconds_max=STOP_SECONDS_MAX + config.node.drain_ms / 1_000,
        # The very first start creates the first user, in one process only.
        is_first_alone=auth and not before,
        held=held,
    )


async def _share_master(config: Config, folder: Path) -> dict[str, str]:
    """Create the shared master key if it is missing, and return the key settings of workers."""
    keys = config.keys
    await start_key_ring(keys, folder, env=os.environ)
    made = folder / MASTER_NAME
    if keys.kms_command:
        # Wrapped by the service: each process unwraps it.
        for worker in range(1, config.node.workers + 1):
            own = plan.worker_folder(folder, worker)
            own.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / KMS_NAME, own / KMS_NAME)
    elif not keys.master_file and not os.environ.get(MASTER_VARIABLE):
        return {"keys.master_file": str(made)}
    if not made.exists():
        return {}
    # Created before another key was configured: it may still wrap secrets.
    old = [keys.old_master_files] if keys.old_master_files else []
    return {"keys.old_master_files": ",".join([*old, str(made)])}


def _hold_addresses(config: Config, held: contextlib.ExitStack) -> Addresses:
    """Reserve ports with sockets that do not listen, so that no other process gets the port of a
    worker that restarts. Raises SetupError if a configured port is in use."""
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
        reserved = []
        for host, port in plan.kafka_addresses(config, *parse_listen(listen)):
            with binding("Kafka", "--kafka", host, port):
                reserved.append(str(_hold(held, host, port)))
        return reserved
    host, port = KAFKA_LISTEN_DEFAULT
    _, http_port = parse_listen(config.http.listen)
    if http_port:
        with contextlib.suppress(OSError), contextlib.ExitStack() as trying:
            found = [str(_hold(trying, *one)) for one in plan.kafka_addresses(config, host, port)]
            held.push(trying.pop_all())
            return found
    # The default ports are in use, or http.listen has port 0.
    return [str(_hold(held, host, 0)) for _ in range(config.node.workers)]


def _hold_admin(config: Config, http: NodeAddress, held: contextlib.ExitStack) -> str:
    if config.admin.listen:
        host, port = parse_listen(config.admin.listen)
        with binding("admin API", "--admin", host, port):
            return str(_hold(held, host, port))
    _, configured = parse_listen(config.http.listen)
    if configured and http.port < 65_535:
        with contextlib.suppress(OSError):
            return str(_hold(held, http.host, http.port + 1))
    return str(_hold(held, http.host, 0))


def _hold(
    held: contextlib.ExitStack, host: str, port: int, *, is_shared: bool = False
) -> NodeAddress:
    """Reserve a port with a socket that does not listen. For a port that workers share, a socket
    without SO_REUSEPORT is bound first, which fails if another program uses the port."""
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
        raise OSError(error.errno, f"{error.strerror}: {NodeAddress(host, port)}") from error
    held.enter_context(keeping)
    return NodeAddress(host, bound[1])


def _prepare(one: socket.socket, family: int, *, is_shared: bool) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)


class Child:
    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, secret: bytes
    ) -> None:
        self.name = name
        self._is_settled = asyncio.Event()  # ready, or ended
        self.has_ended = asyncio.Event()
        self.has_ended.set()
        self.ready_line = ""
        self.how = ""  # exit code or signal of the run that has ended
        self.code = 0
        self.served_ms = 0  # of the run that has ended
        self._command = command
        self._env = {**env, **SECRET_ENV}
        self._secret = secret  # shared by the processes, to authenticate each other
        self._line = b""
        self._process: subprocess.Popen[bytes]
        self._descriptor = -1
        self._ready_at = 0.0

    def start(self) -> None:
        assert self.has_ended.is_set(), "the process still runs"
        secret_pipe = pipe_with(self._secret)
        try:
            self._process = start_child(
                self._command,
                stdin=secret_pipe,
                stdout=subprocess.PIPE,
                env=self._env,
                end=signal.SIGKILL,
            )
        finally:
            os.close(secret_pipe)
        self._is_settled.clear()
        self.has_ended.clear()
        self.ready_line, self._line, self._ready_at = "", b"", 0.0
        # Until the process is waited for, its pid is not reused.
        self._descriptor = os.pidfd_open(self._process.pid)
        os.set_blocking(self._stdout(), False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, self._ended)
        loop.add_reader(self._stdout(), self._read_output)

    def _stdout(self) -> int:
        assert self._process.stdout is not None, "the process was started with a pipe"
        return self._process.stdout.fileno()

    def send(self, number: signal.Signals) -> None:
        if not self.has_ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _read_output(self) -> None:
        try:
            data = os.read(self._stdout(), READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._stdout())
            return
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-LINE_BYTES_MAX:]
        for line in (one.decode("utf-8", "replace") for one in lines):
            if self.ready_line or not line.startswith("ready "):
                print(line, flush=True)  # noqa: T201 - the first access key
                continue
            self.ready_line = line
            self._ready_at = asyncio.get_running_loop().time()
            self._is_settled.set()

    def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        code = self.code = self._process.wait()
        self.how = f"code {code}" if code >= 0 else f"signal {-code}"
        if self._process.stdout is not None:
            self._read_output()  # what it wrote just before it ended
            loop.remove_reader(self._stdout())
            self._process.stdout.close()
        now = loop.time()
        self.served_ms = int((now - self._ready_at) * 1_000) if self._ready_at else 0
        self._is_settled.set()
        self.has_ended.set()

    async def ready(self) -> None:
        """Wait until the process is ready. Raises NotStarted if it ends before it is ready."""
        await self._is_settled.wait()
        if not self.ready_line:
            raise NotStarted(f"{self.name} ended with {self.how} before it was ready")


@dataclass(eq=False)
class Supervisor:
    """Starts and stops the processes of a server. Has the same methods as a node."""

    children: Sequence[Child]  # the metadata and then the workers
    stop_seconds_max: float
    is_first_alone: bool
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)  # ports and a lock
    root_key = None  # printed by a worker
    # What a single process prints, with the addresses of the first worker.
    ready_text = http_url = ""

    def __post_init__(self) -> None:
        self._metadata, *self._workers = self.children
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, stop: asyncio.Event) -> None:
        starting = asyncio.create_task(self._start())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                log_.info("node stopped before all worker processes were ready")
                return
            starting.result()
        except BaseException:
            await self.drain()
            raise
        finally:
            starting.cancel()
            stopped.cancel()
        log_.info("workers are ready", extra={"workers": len(self._workers)})
        parts = self._workers[0].ready_line.split()[1:]
        self.ready_text = " ".join(parts)
        self.http_url = next((part[5:] for part in parts if part.startswith("http=")), "")

    async def _start(self) -> None:
        await self._start_some([self._metadata])
        if self.is_first_alone:
            await self._start_some(self._workers[:1])
            await self._start_some(self._workers[1:])
        else:
            await self._start_some(self._workers)
        self._keepers = [
            asyncio.create_task(self._keep(child), name=f"keep {child.name}")
            for child in self.children
        ]

    async def _start_some(self, children: Sequence[Child]) -> None:
        for child in children:
            child.start()
        await asyncio.gather(*(child.ready() for child in children))

    async def _keep(self, child: Child) -> None:
        """Restart a process whenever it ends, after a delay that grows if it ends soon again."""
        pause_ms = 0
        while True:
            await child.has_ended.wait()
            pause_ms = plan.next_pause_ms(pause_ms, child.served_ms)
            log_.error(
                "worker process ended, restarting it",
                extra={"worker": child.name, "reason": child.how, "pause_ms": pause_ms},
            )
            await asyncio.sleep(pause_ms / 1_000)
            try:
                child.start()
                await child.ready()
            except (NotStarted, OSError) as error:
                log_.warning("restarting a worker process failed", extra={"reason": str(error)})
            else:
                log_.info("worker process restarted", extra={"worker": child.name})

    def freeze(self) -> None:
        """Do nothing: this process has too few objects for ``gc.freeze`` to save time."""

    def reread(self) -> None:
        for child in self.children:
            child.send(signal.SIGHUP)

    async def drain(self) -> bool:
        """Stop the workers, then the metadata process. Returns whether all stopped cleanly."""
        await abandon(*self._keepers)
        is_clean = [await self._end_some(some) for some in (self._workers, [self._metadata])]
        self.held.close()
        return all(is_clean)

    async def _end_some(self, children: Sequence[Child]) -> bool:
        running = [child for child in children if not child.has_ended.is_set()]
        for child in running:
            child.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(self.stop_seconds_max):
                for child in running:
                    await child.has_ended.wait()
        except TimeoutError:
            for child in running:
                if not child.has_ended.is_set():
                    log_.error(
                        "worker did not stop in time, killing it", extra={"worker": child.name}
                    )
                    child.send(signal.SIGKILL)
            for child in running:
                await child.has_ended.wait()
        # A process that was still starting is ended by the signal itself.
        return all(child.code in (0, -signal.SIGTERM) for child in running)
