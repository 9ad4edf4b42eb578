"""Commands ``penstock cluster up`` and ``down``, which run a cluster on this machine for
development. No process is restarted automatically, so that users can test the loss of a node."""

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import click

import penstock.cli.cluster.changes  # noqa: F401 - adds its verbs to the noun
from penstock.cli.clients.contexts import ENDPOINT_DEFAULT
from penstock.cli.clients.http import Admin
from penstock.cli.cluster import processes
from penstock.cli.cluster.processes import ETCD, Folder, Layout, Process, ProcessId, StopSignals
from penstock.cli.cluster.status import cluster, problems
from penstock.cli.command import Session
from penstock.cli.terminal.failure import Conflict, ExitCode, Failure, NotFound
from penstock.cli.terminal.options import option
from penstock.cli.terminal.output import Row, columns

ETCD_SECONDS_MAX = 30.0
READY_SECONDS_MAX = 60.0
REPLICAS_SECONDS_MAX = 20.0  # until every partition has all of its replicas
STATUS_SECONDS_MAX = 5.0
STATUS_EVERY_S = 0.25

_COLUMNS = columns("name NODE, http SQS, kafka, admin, log")
_data = option("--data", "DIR", "folder of the cluster", default="./penstock-cluster")


@cluster.command()
@option("--nodes", click.IntRange(1, processes.NODES_MAX), "number of nodes [default: 3]")
@_data
@click.option("--etcd", metavar="HOST:PORT[,...]", help="addresses of etcd [default: start one]")
@option(
    "--port-base",
    click.IntRange(1_024, 65_000),
    "first port; each node uses 10 ports [default: 9324, or the next free range]",
)
@click.option("--detach", is_flag=True, help="run in the background, until `penstock cluster down`")
def up(
    session: Session,
    nodes: int | None,
    data: str,
    etcd: str | None,
    port_base: int | None,
    detach: bool,
) -> None:
    """Run a cluster of etcd and several nodes on this machine. Ctrl-C stops it.

    Data and ports are saved in a folder, so that the next `up` starts the same cluster."""
    from penstock.node.process.folder import repair, set_umask

    set_umask()
    program = None if etcd else shutil.which(ETCD)
    folder = Folder(Path(data))
    is_etcd_given = bool(etcd or (folder.is_there and folder.layout().etcd))
    if find_spec("grpc") is None:
        raise NotFound(
            "grpcio is not installed",
            "cluster nodes use it to connect to etcd",
            f"run `{sys.executable} -m pip install 'penstock[cluster]'`",
        )
    if program is None and not is_etcd_given:
        raise NotFound(
            "etcd is not installed",
            "a cluster keeps its metadata in etcd",
            "install it (Debian: apt install etcd-server), or use --etcd HOST:PORT",
        )
    folder.lock()
    repair(folder.path, but=folder.master_file.name)
    layout = folder.prepare(nodes=nodes, base=port_base, etcd=etcd)
    with StopSignals() as signals:
        local = LocalCluster(session, folder, layout, signals, detach)
        try:
            local.start(program or ETCD)
        except BaseException as error:
            local.stop()
            if isinstance(error, processes.StartStopped):
                raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
            raise
        if detach:
            _show(session, folder, layout, is_detached=True)
            return
        try:
            _show(session, folder, layout, is_detached=False)
            is_stopped = local.wait()
        finally:
            local.stop()
        if not is_stopped:
            raise click.exceptions.Exit(ExitCode.FAILED)


@dataclass
class LocalCluster:
    _session: Session
    _folder: Folder
    _layout: Layout
    _signals: StopSignals
    _is_detached: bool
    _earlier: list[ProcessId] = field(default_factory=list)  # left running by an earlier ``up``
    _ours: list[Process] = field(default_factory=list)

    def start(self, etcd_program: str) -> None:
        layout, folder = self._layout, self._folder
        running = self._earlier = folder.running()
        if running and not self._is_detached:
            raise Conflict(
                f"processes are already running: {', '.join(one.name for one in running)}",
                fix="stop them with `penstock cluster down`, or start missing nodes with --detach",
            )
        names = {one.name for one in running}
        nodes = [node for node in range(1, layout.nodes + 1) if f"n{node}" not in names]
        is_etcd_ours = not layout.etcd and ETCD not in names
        ports = layout.all_ports(nodes=nodes, with_etcd=is_etcd_ours)
        if (port := processes.port_in_use(ports)) is not None:
            raise Conflict(
                f"port {port} is in use",
                "another process listens on it",
                "stop that process, or use another --data DIR with another --port-base",
            )
        pid = os.getpid()
        if not self._is_detached:
            self._earlier.append(ProcessId(processes.UP, pid, processes.started_at(pid) or 0))
        if is_etcd_ours:
            command = processes.etcd_command(etcd_program, layout, folder)
            etcd = self._start(ETCD, command, processes.etcd_environment())
            self._wait_healthy(etcd, layout.etcd_ports[0], "/health", ETCD_SECONDS_MAX)
            self._session.remark("etcd is ready")
        started = []
        for node in nodes:
            command = processes.node_command(node, layout, folder)
            env = processes.node_environment(node, layout, folder)
            started.append(self._start(f"n{node}", command, env))
        for done, (node, process) in enumerate(zip(nodes, started, strict=True), 1):
            self._wait_healthy(process, layout.ports(node).admin, "/readyz", READY_SECONDS_MAX)
            self._session.remark(f"n{node} is ready, {done} of {len(nodes)}")
        self._wait_for_replicas()

    def _log(self, name: str) -> Path:
        return self._folder.logs / f"{name}.log"

    def _start(self, name: str, command: list[str], env: dict[str, str]) -> Process:
        log = self._log(name)
        process = Process.start(name, command, env=env, log=log, detach=self._is_detached)
        self._ours.append(process)
        self._record()
        return process

    def _record(self) -> None:
        self._folder.record([*self._earlier, *(process.id for process in self._ours)])

    def _wait_healthy(self, process: Process, port: int, path: str, seconds: float) -> None:
        log, signals = self._log(process.name), self._signals
        processes.wait_healthy(process, port, path, log=log, seconds=seconds, signals=signals)

    def _wait_for_replicas(self) -> None:
        url = f"http://127.0.0.1:{self._layout.ports(1).admin}"
        settings = replace(self._session.settings, account=None, timeout_s=STATUS_SECONDS_MAX)
        admin = Admin(url, settings)
        wrong: list[str] = []
        for _ in range(int(REPLICAS_SECONDS_MAX / STATUS_EVERY_S)):
            try:
                wrong = problems(admin.get("cluster"))
            except Failure as error:
                wrong = [error.why]
                break
            if not wrong:
                break
            if processes.wait_readable([self._signals.fd], seconds=STATUS_EVERY_S):
                raise processes.StartStopped("the start was stopped before the cluster was ready")
        admin.close()
        for line in wrong:
            self._session.remark(f"not ready yet: {line}")

    def wait(self) -> bool:
        """Wait for a stop signal and return True, or return False when the last node has ended."""
        while any(process.name != ETCD for process in self._ours):
            by_fd = {process.fd: process for process in self._ours}
            ready = processes.wait_readable([self._signals.fd, *by_fd], seconds=None)
            if self._signals.fd in ready:
                self._signals.clear()
                return True
            for process in map(by_fd.__getitem__, ready):
                self._ours.remove(process)
                log = self._log(process.name)
                self._session.remark(f"{process.name} {process.ended()}; see {log}")
            self._record()
        self._session.remark("no node is running any more")
        return False

    def stop(self) -> None:
        for line in processes.stop_all(processes.in_stop_order(self._ours), self._signals):
            self._session.remark(line)
        if self._ours:
            self._ours = []
            self._record()


def _show(session: Session, folder: Folder, layout: Layout, *, is_detached: bool) -> None:
    rows: list[Row] = []
    for node in range(1, layout.nodes + 1):
        http, admin, kafka, _ = (f"127.0.0.1:{port}" for port in layout.ports(node))
        row = {"node": node, "name": f"n{node}", "http": f"http://{http}", "kafka": kafka}
        log = str(folder.logs / f"n{node}.log")
        rows.append({**row, "admin": f"http://{admin}", "log": log})
    session.out.many(rows, columns=_COLUMNS)
    first, last = str(rows[0]["http"]), str(rows[-1]["http"])
    end = f"`penstock cluster down --data {folder.path}`" if is_detached else "Ctrl-C"
    hints = [
        "",
        "Try it:" if is_detached else "Try it from another terminal:",
        "",
        *([] if first == ENDPOINT_DEFAULT else [f"  export PENSTOCK_ENDPOINT={first}"]),
        "  penstock cluster status",
        "  penstock queue create jobs",
        '  penstock message send jobs "resize image 17"',
        "  AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x \\",
        f"    aws --endpoint-url {last} --region us-east-1 sqs list-queues",
        f"  kcat -b {','.join(str(row['kafka']) for row in rows)} -L",
        "",
        f"{end} stops it.",
        "The next `penstock cluster up` continues with the same cluster.",
    ]
    if session.out.is_table:
        session.out.line("\n".join(hints))
    session.out.flush()


@cluster.command()
@_data
def down(session: Session, data: str) -> None:
    """Stop a cluster that `penstock cluster up` started. Its data and ports are kept."""
    folder = Folder(Path(data))
    folder.layout()  # raises NotFound if there is no cluster in the folder
    found = []
    for running in folder.running():
        with suppress(ProcessLookupError):
            found.append(Process(running))
    found = processes.in_stop_order(found)
    with StopSignals() as signals:
        for line in processes.stop_all(found, signals):
            session.remark(line)
    folder.record([])
    stopped = [process.name for process in found]
    if session.out.is_table:
        session.out.line("stopped" if stopped else "nothing was running")
    else:
        session.out.one({"data": str(folder.path), "stopped": stopped}, name="data")
