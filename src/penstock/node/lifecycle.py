"""The life of a node: load the configuration, start, print ``ready``, serve until a signal, drain.

The exit code is 0 after a drain and 1 after a forced stop; a failed start raises a SetupError with
its own exit code."""

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
from penstock.node.compose import Node, make_node
from penstock.node.configuration import config as node_config
from penstock.node.configuration.config import Config
from penstock.node.configuration.settings import Loaded, describe
from penstock.node.metadata.metadata_link import GivenUp
from penstock.node.metadata.metadata_node import MetadataNode
from penstock.node.process import folder, resources
from penstock.node.process.start_errors import READY, STOPPING, ServiceManager, explained
from penstock.telemetry import logs

log_ = logging.getLogger(__name__)

AnyNode = Node | MetadataNode

EXIT_OK, EXIT_FAILED = 0, 1

# Objects of requests are freed by reference counting, so frequent collections only cost time. A
# collection per 10,000 new objects takes 2 to 4 ms, one of older objects at most 10 ms.
GC_THRESHOLDS = (10_000, 5, 200)


def serve(
    flags: dict[str, object], *, config_file: str | None, print_config: bool, hints: bool
) -> int:
    """Run a server and return its exit code. Raises SetupError."""
    files = node_config.config_files(Path(config_file) if config_file else None)
    loaded = node_config.load(flags, os.environ, files)
    if print_config:
        for row in describe(loaded):
            print(f"{row.key} = {row.value}  # {row.origin}")  # noqa: T201
        return EXIT_OK
    folder.set_umask()
    manager = ServiceManager(os.environ)
    telemetry = loaded.config.telemetry
    name = loaded.config.node.name or platform.node()
    logs.configure(telemetry.level, telemetry.format, node=name)
    resources.raise_limit()
    if loaded.config.node.workers:
        from penstock.node import workers

        shown = partial(_hints, config=loaded.config) if hints else None
        return workers.serve(loaded, flags, config_file=config_file, hints=shown, manager=manager)
    resources.keep_freed_blocks()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(loaded, manager, hints=hints))


async def _run(loaded: Loaded[Config], manager: ServiceManager, *, hints: bool) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_stop_signal, stop)
    node: AnyNode | None = None
    try:
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
    if not node.is_auth_on and node.http_url:
        log_.warning("authentication is off: requests are accepted with any credentials or none")
    lines = [*_root_key(node), f"ready {node.ready_text}"]
    if hints and node.http_url:
        lines += _hints(node.http_url, loaded.config)
    print("\n".join(lines), flush=True)  # noqa: T201
    manager.tell(READY)
    await stop.wait()
    log_.info("node is draining")
    manager.tell(STOPPING)
    await node.drain()
    log_.info("node stopped")
    return EXIT_OK


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
