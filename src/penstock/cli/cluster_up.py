"""``penstock cluster up`` and ``down``: run a real cluster on this machine, to try things with.

One etcd and several nodes run as separate processes. Their data is kept in a folder, so that the
next ``up`` continues with the same cluster. In the foreground Ctrl-C stops everything; with
``--detach`` the cluster runs until ``down``. No process is restarted automatically, so that users
can try what the loss of a node does to a cluster."""

import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.cluster_folder import (
    ETCD,
    NODES_MAX,
    UP,
    Folder,
    Known,
    Layout,
    started_at,
    taken,
)
from penstock.cli.cluster_words import problems
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, Row
from penstock.cli.session import ENDPOINT_DEFAULT, Session, Verb, pass_session

if TYPE_CHECKING:
    from penstock.cli.cluster_processes import Process, Told

FOLDER_DEFAULT = "./penstock-cluster"
ETCD_SECONDS_MAX = 30.0
READY_SECONDS_MAX = 60.0
WHOLE_SECONDS_MAX = 20.0  # until every partition has all of its replicas
ASK_SECONDS_MAX = 5.0
ASK_EVERY_S = 0.25

_COLUMNS = (
    Column("name", "NODE"),
    Column("http", "SQS"),
    Column("kafka", "KAFKA"),
    Column("admin", "ADMIN"),
    Column("log", "LOG"),
)


_data = click.option(
    "--data", metavar="DIR", default=FOLDER_DEFAULT, show_default=True, help="where it is kept"
)


@click.command(cls=Verb)
@click.option("--nodes", type=click.IntRange(1, NODES_MAX), help="how many [default: 3]")
@_data
@click.option("--etcd", metavar="HOST:PORT[,...]", help="one that runs, instead of our own")
@click.option(
    "--port-base",
    type=click.IntRange(1_024, 65_000),
    help="the first node's port; each has ten [default: 9324, or further up]",
)
@click.option("--detach", is_flag=True, help="leave it running, until `penstock cluster down`")
@pass_session
def up(
    session: Session,
    nodes: int | None,
    data: str,
    etcd: str | None,
    port_base: int | None,
    detach: bool,
) -> None:
    """Run a cluster on this machine.

    An etcd and some nodes, with their data and ports kept in a folder for the next time.
    """
    from penstock.cli.cluster_processes import GivenUp, Told
    from penstock.node import private

    private.set_umask()
    program = None if etcd else shutil.which(ETCD)
    folder = Folder(Path(data))
    is_etcd_given = bool(etcd or (folder.is_there and folder.layout().etcd))
    _check_installed(program, is_etcd_given=is_etcd_given)
    folder.take()
    private.repair(folder.path, but=folder.master_file.name)
    layout = folder.settle(nodes=nodes, base=port_base, etcd=etcd)
    with Told() as told:
        local = _Local(session, folder, layout, program or ETCD, told, stays=detach)
        try:
            local.start()
        except BaseException as error:
            local.stop()
            if isinstance(error, GivenUp):
                raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
            raise
        if detach:
            _show(session, folder, layout, stays=True)
            return
        try:
            _show(session, folder, layout, stays=False)
            is_whole = local.look_after()
        finally:
            local.stop()
        if not is_whole:
            raise click.exceptions.Exit(ExitCode.FAILED)


def _check_installed(etcd_program: str | None, *, is_etcd_given: bool) -> None:
    """Raise Failure if something that nodes need is missing, before anything is started."""
    if find_spec("grpc") is None:
        raise Failure(
            "grpcio is not installed",
            "nodes of a cluster use it to talk to etcd",
            f"{sys.executable} -m pip install 'penstock[cluster]'",
            exit_code=ExitCode.NOT_FOUND,
        )
    if etcd_program is None and not is_etcd_given:
        raise Failure(
            "etcd is not installed",
            "a cluster keeps its metadata in etcd",
            "install it (Debian: apt install etcd-server), or name one: --etcd HOST:PORT",
            exit_code=ExitCode.NOT_FOUND,
        )


class _Local:
    """The processes of this ``up``, and those that an earlier ``up`` left running."""

    def __init__(
        self,
        session: Session,
        folder: Folder,
        layout: Layout,
        program: str,
        told: "Told",
        *,
        stays: bool,
    ) -> None:
        self._session = session
        self._folder = folder
        self._layout = layout
        self._program = program
        self._told = told
        self._stays = stays
        self._ours: list[Process] = []

    def start(self) -> None:
        layout = self._layout
        before = self._folder.running()
        if before and not self._stays:
            raise Failure(
                f"{', '.join(one.name for one in before)} run already",
                fix="stop them with `penstock cluster down`, or start the others with --detach",
                exit_code=ExitCode.CONFLICT,
            )
        names = {one.name for one in before}
        nodes = [node for node in range(1, layout.nodes + 1) if f"n{node}" not in names]
        is_etcd_ours = not layout.etcd and ETCD not in names
        wanted = layout.all_ports(nodes=nodes, with_etcd=is_etcd_ours)
        if (port := taken(wanted)) is not None:
            raise Failure(
                f"port {port} is taken",
                "another program listens on it",
                "end that, or take another --data with another --port-base",
                exit_code=ExitCode.CONFLICT,
            )
        pid = os.getpid()
        if not self._stays:
            before.append(Known(UP, pid, started_at(pid) or 0))
        self._noted = before
        if is_etcd_ours:
            self._start_etcd()
        self._start_nodes(nodes)
        self._wait_whole()

    def _wait_whole(self) -> None:
        """Wait until partitions that were created while nodes started one by one have all replicas.
        With authentication on, this only prints why the status cannot be read."""
        from penstock.cli.client import Admin
        from penstock.cli.cluster_processes import happened, stop_starting

        admin = Admin(
            f"http://127.0.0.1:{self._layout.ports(1).admin}",
            region=self._session.settings.region,
            account=None,
            timeout_s=ASK_SECONDS_MAX,
        )
        wrong: list[str] = []
        for _ in range(int(WHOLE_SECONDS_MAX / ASK_EVERY_S)):
            try:
                wrong = problems(admin.get("cluster"))
            except Failure as error:
                wrong = [error.why]
                break
            if not wrong:
                break
            if happened([self._told.fd], seconds=ASK_EVERY_S):
                stop_starting()
        admin.close()
        for line in wrong:
            self._session.remark(f"not yet: {line}")

    def _begin(self, name: str, command: list[str], env: dict[str, str]) -> "Process":
        from penstock.cli.cluster_processes import started

        log = self._folder.logs / f"{name}.log"
        process = started(name, command, env=env, log=log, stays=self._stays)
        self._ours.append(process)
        self._note()
        return process

    def _note(self) -> None:
        self._folder.note([*self._noted, *(process.known for process in self._ours)])

    def _start_etcd(self) -> None:
        from penstock.cli.cluster_processes import etcd_command, etcd_environment, wait_well

        command = etcd_command(self._program, self._layout, self._folder)
        process = self._begin(ETCD, command, etcd_environment())
        port, _ = self._layout.etcd_ports
        log = self._folder.logs / "etcd.log"
        told = self._told
        wait_well(process, port, "/health", log=log, seconds=ETCD_SECONDS_MAX, told=told)
        self._session.remark("etcd is ready")

    def _start_nodes(self, nodes: list[int]) -> None:
        from penstock.cli.cluster_processes import node_command, node_environment, wait_well

        layout, folder = self._layout, self._folder
        begun = {
            node: self._begin(
                f"n{node}",
                node_command(node, layout, folder),
                node_environment(node, layout, folder),
            )
            for node in nodes
        }
        for done, (node, process) in enumerate(begun.items(), 1):
            wait_well(
                process,
                layout.ports(node).admin,
                "/readyz",
                log=folder.logs / f"n{node}.log",
                seconds=READY_SECONDS_MAX,
                told=self._told,
            )
            self._session.remark(f"n{node} is ready, {done} of {len(begun)}")

    def look_after(self) -> bool:
        """Wait for a stop signal and return True, or return False once no node is left."""
        from penstock.cli.cluster_processes import happened

        while any(process.name != ETCD for process in self._ours):
            fds = {process.fd: process for process in self._ours}
            said = happened([self._told.fd, *fds], seconds=None)
            if self._told.fd in said:
                self._told.forget()
                return True
            for fd in said:
                process = fds[fd]
                self._ours.remove(process)
                log = self._folder.logs / f"{process.name}.log"
                self._session.remark(f"{process.name} {process.ended()}; see {log}")
            self._note()
        self._session.remark("no node is left")
        return False

    def stop(self) -> None:
        from penstock.cli.cluster_processes import end_all

        for line in end_all(in_order(self._ours), self._told):
            self._session.remark(line)
        if self._ours:
            self._ours = []
            self._note()


def in_order(processes: Sequence["Process"]) -> list["Process"]:
    """Sort processes in the order of stopping: first a command in the foreground, which stops its
    own; then the nodes, one by one, so that each can hand over to another; etcd last."""
    places = {UP: 0, ETCD: 2}
    return sorted(processes, key=lambda process: places.get(process.name, 1))


def _show(session: Session, folder: Folder, layout: Layout, *, stays: bool) -> None:
    rows: list[Row] = []
    for node in range(1, layout.nodes + 1):
        ports = layout.ports(node)
        rows.append(
            {
                "node": node,
                "name": f"n{node}",
                "http": f"http://127.0.0.1:{ports.http}",
                "kafka": f"127.0.0.1:{ports.kafka}",
                "admin": f"http://127.0.0.1:{ports.admin}",
                "log": str(folder.logs / f"n{node}.log"),
            }
        )
    session.out.many(rows, columns=_COLUMNS)
    if session.out.is_table:
        for line in _hints(rows, folder, stays=stays):
            session.out.line(line)
    session.out.flush()


def _hints(rows: list[Row], folder: Folder, *, stays: bool) -> list[str]:
    first, last = str(rows[0]["http"]), str(rows[-1]["http"])
    brokers = ",".join(str(row["kafka"]) for row in rows)
    named = [] if first == ENDPOINT_DEFAULT else [f"  export PENSTOCK_ENDPOINT={first}"]
    return [
        "",
        "Try it from another terminal:" if not stays else "Try it:",
        "",
        *named,
        "  penstock cluster status",
        "  penstock queue create jobs",
        '  penstock message send jobs "resize image 17"',
        "  AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x \\",
        f"    aws --endpoint-url {last} --region us-east-1 sqs list-queues",
        f"  kcat -b {brokers} -L",
        "",
        f"`penstock cluster down --data {folder.path}` stops it." if stays else "Ctrl-C stops it.",
        "The next `penstock cluster up` goes on with the same cluster.",
    ]


@click.command(cls=Verb)
@_data
@pass_session
def down(session: Session, data: str) -> None:
    """Stop the cluster that `up` has started in a folder. Data and ports stay."""
    from penstock.cli.cluster_processes import Process, Told, end_all

    folder = Folder(Path(data))
    folder.layout()  # raises Failure if the folder is not of a cluster
    found = []
    for known in folder.running():
        try:
            found.append(Process(known))
        except ProcessLookupError:
            continue
    found = in_order(found)
    with Told() as told:
        for line in end_all(found, told):
            session.remark(line)
    folder.note([])
    stopped = [process.name for process in found]
    if session.out.is_table:
        session.out.line("stopped" if stopped else "nothing was running")
    else:
        session.out.one({"data": str(folder.path), "stopped": stopped}, name="data")
