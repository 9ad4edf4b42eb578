"""A node's life: read the configuration, start, say ``ready``, serve until told to stop, drain.

The exit code is part of the contract: 0 after a drain, 1 when the node had to give up; a start that
fails is a SetupError with a code of its own.
"""

import asyncio
import gc
import logging
import os
import platform
import signal
from functools import partial
from pathlib import Path

import uvloop

from penstock import __version__
from penstock.model.errors import PenstockError
from penstock.node import config as node_config
from penstock.node import open_files, private
from penstock.node.allocator import keep_freed_blocks
from penstock.node.compose import AnyNode, make_node
from penstock.node.config import Config
from penstock.node.metadata_link import GivenUp
from penstock.node.service_manager import READY, STOPPING, ServiceManager
from penstock.node.settings import Loaded, describe
from penstock.node.start_errors import explained
from penstock.telemetry import logs

log_ = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED = 0, 1

# Requests make short-lived objects that reference counting frees; a collector that looks after
# every 700 of them only costs time. One that looks after 10,000 takes 2 to 4 ms at a stretch, and
# one at the survivors of five such rounds at most 10 ms.
GC_THRESHOLDS = (10_000, 5, 200)


def serve(
    flags: dict[str, object], *, config_file: str | None, print_config: bool, hints: bool
) -> int:
    """Returns the exit code of a server that has run. Raises SetupError."""
    files = node_config.config_files(Path(config_file) if config_file else None)
    loaded = node_config.load(flags, os.environ, files)
    if print_config:
        for row in describe(loaded):
            print(f"{row.key} = {row.value}  # {row.origin}")  # noqa: T201
        return EXIT_OK
    private.set_umask()
    manager = ServiceManager(os.environ)
    telemetry = loaded.config.telemetry
    name = loaded.config.node.name or platform.node()
    logs.configure(telemetry.level, telemetry.format, node=name)
    open_files.raise_limit()
    if loaded.config.node.workers:
        from penstock.node import workers  # a process by itself need not know of them

        told = partial(_hints, config=loaded.config) if hints else None
        return workers.serve(loaded, flags, config_file=config_file, hints=told, manager=manager)
    keep_freed_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(loaded, manager, hints=hints))


async def _run(loaded: Loaded[Config], manager: ServiceManager, *, hints: bool) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, stop)
    node: AnyNode | None = None
    try:
        node = make_node(loaded)
        await node.start(stop)
    except GivenUp as reason:
        log_.info("stopped", extra={"reason": str(reason)})
        return EXIT_OK
    except (PenstockError, OSError) as error:
        if node is not None and (lines := _root_key(node)):
            # The next start finds the key and makes no other: this is the only time to show it.
            print("\n".join(lines), flush=True)  # noqa: T201
        raise explained(error) from error
    loop.add_signal_handler(signal.SIGHUP, node.reread)
    node.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    _announce(node, loaded.config, hints=hints)
    manager.tell(READY)
    await stop.wait()
    log_.info("draining")
    manager.tell(STOPPING)
    await node.drain()
    log_.info("stopped")
    return EXIT_OK


def _asked_to_stop(stop: asyncio.Event) -> None:
    if stop.is_set():
        # Asked twice: whatever is committed is safe; do not keep the operator waiting.
        os._exit(EXIT_FAILED)
    stop.set()


def _announce(node: AnyNode, config: Config, *, hints: bool) -> None:
    if not node.is_auth_on and node.http_url:
        log_.warning("authentication is off: any credentials are accepted, and none")
    lines = [*_root_key(node), f"ready {node.ready_text}"]
    if hints and node.http_url:
        lines += _hints(node.http_url, config)
    print("\n".join(lines), flush=True)  # noqa: T201


def _root_key(node: AnyNode) -> list[str]:
    """The first key, once: nobody can get in without it, and it is written down nowhere else."""
    made = node.root_key
    if made is None:
        return []
    return [
        "",
        "No operator had an access key: this start has made one for root. It is shown this once:",
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
        "Ctrl-C stops it; nothing that was answered is lost.",
    ]
