"""Runs a node: loads the configuration, starts the node, prints ``ready``, waits for a signal, and
drains the node. The exit code is 0 after a drain and 1 after a forced stop; if the start fails, a
SetupError with another exit code is raised."""

import asyncio
import gc
import logging
import os
import platform
import signal
import socket
import sqlite3
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

import uvloop

from penstock import __version__
from penstock.membership.cluster_view import LevelRefused
from penstock.metadata.store import StoreUnreachable, StoreUnusable
from penstock.model.errors import PenstockError, SetupError
from penstock.node.compose import Node, make_node
from penstock.node.configuration import config as node_config
from penstock.node.configuration.config import Config
from penstock.node.configuration.settings import Loaded, describe
from penstock.node.metadata.metadata_link import GivenUp
from penstock.node.metadata.metadata_node import MetadataNode
from penstock.node.process import folder, resources
from penstock.node.workers import Supervisor, make_supervisor
from penstock.telemetry import logs

log_ = logging.getLogger(__name__)

AnyNode = Node | MetadataNode | Supervisor

EXIT_OK, EXIT_FAILED = 0, 1
VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"

# Objects of requests are freed by reference counting, so frequent collections only cost time. A
# collection per 10,000 new objects takes 2 to 4 ms, one of older objects at most 10 ms.
GC_THRESHOLDS = (10_000, 5, 200)


class ServiceManager:
    """Notifies systemd, if it started this process, that the server is ready or is stopping
    (``Type=notify``, see sd_notify(3))."""

    def __init__(self, env: MutableMapping[str, str]) -> None:
        # Removed from ``env``, because processes that this one starts must not use it.
        address = env.pop(VARIABLE, "")
        # systemd writes the zero byte of an abstract socket as "@".
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def tell(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as door:
                door.connect(self._address)
                door.sendall(state.encode())
        except OSError as error:
            log_.warning("notifying systemd failed", extra={"reason": str(error)})


def serve(
    flags: dict[str, object], *, config_file: str | None, print_config: bool, hints: bool
) -> int:
    """Run a server until it is stopped, and return its exit code."""
    files = node_config.config_files(Path(config_file) if config_file else None)
    loaded = node_config.load(flags, os.environ, files)
    if print_config:
        for row in describe(loaded):
            print(f"{row.key} = {row.value}  # {row.origin}")  # noqa: T201
        return EXIT_OK
    folder.set_umask()
    telemetry = loaded.config.telemetry
    name = loaded.config.node.name or platform.node()
    logs.configure(telemetry.level, telemetry.format, node=name)
    resources.raise_limit()
    resources.keep_freed_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(loaded, flags, config_file, hints=hints))


async def _run(
    loaded: Loaded[Config], flags: dict[str, object], config_file: str | None, *, hints: bool
) -> int:
    manager = ServiceManager(os.environ)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_stop_signal, stop)
    node: AnyNode | None = None
    try:
        if loaded.config.node.workers:
            node = await make_supervisor(loaded, flags, config_file)
        else:
            node = make_node(loaded)
        await node.start(stop)
    except GivenUp as reason:
        log_.info("node stopped", extra={"reason": str(reason)})
        return EXIT_OK
    except (PenstockError, OSError) as error:
        if node is not None and (lines := _root_key(node)):
            # Shown now, because the next start finds this key and creates no other.
            print("\n".join(lines), flush=True)  # noqa: T201
        raise explained(error) from error
    loop.add_signal_handler(signal.SIGHUP, node.reread)
    node.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    if node.ready_text:
        lines = [*_root_key(node), f"ready {node.ready_text}"]
        if hints and node.http_url:
            lines += _hints(node.http_url, loaded.config)
        print("\n".join(lines), flush=True)  # noqa: T201
        manager.tell(READY)
        await stop.wait()
    log_.info("node is draining")
    manager.tell(STOPPING)
    is_clean = await node.drain()
    log_.info("node stopped")
    return EXIT_OK if is_clean else EXIT_FAILED


def _on_stop_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        # The second signal: stop at once. Everything committed is safe.
        os._exit(EXIT_FAILED)
    stop.set()


def _root_key(node: AnyNode) -> list[str]:
    made = node.root_key
    if made is None:
        return []
    return [
        "",
        "No operator had an access key: this start created one for root, shown only once:",
        "",
        "  [penstock]",
        f"  aws_access_key_id = {made.key.key_id}",
        f"  aws_secret_access_key = {made.secret}",
        "",
    ]


def _hints(url: str, config: Config) -> list[str]:
    return [
        "",
        f"Penstock {__version__}, data in {config.node.data}. Try it from another terminal:",
        "",
        "  python:  import boto3",
        f'           sqs = boto3.client("sqs", endpoint_url="{url}", region_name="us-east-1",',
        '                              aws_access_key_id="x", aws_secret_access_key="x")',
        '           url = sqs.create_queue(QueueName="hello")["QueueUrl"]',
        '           sqs.send_message(QueueUrl=url, MessageBody="first")',
        '           print(sqs.receive_message(QueueUrl=url)["Messages"])',
        "",
        "  shell:   AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x AWS_DEFAULT_REGION=us-east-1 \\",
        f"             aws --endpoint-url {url} sqs create-queue --queue-name hello",
        "",
        "Ctrl-C stops the server; no acknowledged message is lost.",
    ]


# Advice for errors that have none, by the nearest base class.
_DO: Final[Mapping[type[Exception], str]] = {
    LevelRefused: "run a version that supports the feature level of the cluster: `penstock cluster"
    " status`",
    StoreUnreachable: "start etcd or the metadata service, and check the network to it; check its"
    " address in the settings",
    StoreUnusable: "check the metadata store, or restore a backup: `penstock backup restore`",
    sqlite3.Error: "check the disk, or restore a backup: `penstock backup restore`",
    OSError: "check that this user can read and write the file: `penstock doctor --local`",
    Exception: "check this machine and its settings: `penstock doctor --local`",
}


def explained(error: Exception) -> SetupError:
    if isinstance(error, SetupError) and error.do:
        return error
    do = next(_DO[kind] for kind in type(error).__mro__ if kind in _DO)
    if isinstance(error, SetupError):
        return SetupError(error.why, do, what=error.what, code=error.code)
    why = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        why = f"{error.filename}: {error.strerror}"
    assert isinstance(error, PenstockError | OSError), "any other error is a bug"
    return SetupError(why, do)
