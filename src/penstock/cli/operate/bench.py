"""``penstock bench``: measures the speed of a running server as clients see it.

The load is made by ``load.py``. A run creates a queue and deletes it, also after Ctrl-C; a queue
named with ``--queue`` is used unchanged and kept. One process makes the load, so the result for a
very fast server is limited by how fast this process can send requests."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import click
import uvloop

from penstock.cli.command import Noun, Session
from penstock.cli.operate import load
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.terminal.options import bytes_of, several, some_seconds

Run = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]


@click.group(cls=Noun)
def bench() -> None:
    """Measure the throughput and latency of a running server."""


_shape_options = several(
    click.option(
        "-c", "--connections", type=click.IntRange(1, 1_000), default=16, show_default=True
    ),
    click.option(
        "--duration",
        type=some_seconds(0.1, 3_600),
        default=10.0,
        show_default=True,
        metavar="DURATION",
        help="longest run time",
    ),
    click.option(
        "--rate", type=click.FloatRange(0.1, 1e6), help="messages a second [default: no limit]"
    ),
    click.option(
        "--size",
        type=bytes_of(1, 1_048_576),
        default=1_024,
        show_default=True,
        help="size of a message body, bytes",
    ),
    click.option("--queue", metavar="NAME", help="queue to use [default: a temporary one]"),
)


@bench.command()
@_shape_options
@click.option(
    "--batch", type=click.IntRange(1, 10), default=1, show_default=True, help="messages per call"
)
def send(session: Session, batch: int, queue: str | None, **shape: Any) -> None:
    """Measure sends: as fast as the server replies, or at --rate."""
    _measure(session, "send", queue, load.send, batch=batch, **shape)


@bench.command()
@_shape_options
@click.option(
    "--preload",
    type=click.IntRange(0, 10_000_000),
    default=20_000,
    show_default=True,
    help="messages to send before the measurement",
)
def receive(session: Session, preload: int, queue: str | None, **shape: Any) -> None:
    """Measure receives and deletes until the queue is empty."""

    async def fill_then_receive(target: Any, wanted: Any, measured: Any) -> None:
        if preload:
            fill = wanted._replace(rate_per_s=None, batch=10, duration_s=3_600.0)
            filled = load.Measured()
            await load.send(target, fill, filled, count_max=preload)
            if not filled.messages:
                raise Failure("cannot fill the queue", "; ".join(filled.first_errors))
            measured.start_s = time.perf_counter()
        await load.receive(target, wanted, measured)

    _measure(session, "receive", queue, fill_then_receive, **shape)


@bench.command()
@_shape_options
def latency(session: Session, queue: str | None, **shape: Any) -> None:
    """Measure the latency of each call: send, receive and delete one message at a time."""
    _measure(session, "latency", queue, load.latency, **shape)


@bench.command()
@_shape_options
def e2e(session: Session, queue: str | None, **shape: Any) -> None:
    """Measure the time from send to receive, with waiting consumers [default --rate: 100]."""
    shape["rate"] = shape["rate"] or 100.0
    _measure(session, "e2e", queue, load.end_to_end, **shape)


@contextmanager
def _queue(session: Session, name: str | None) -> Iterator[tuple[str, str]]:
    """Yield name and URL of the queue to load: the named one, or a temporary one."""
    if name is not None:
        yield name, session.sqs.queue_url(name)
        return
    import secrets

    name = f"penstock-bench-{secrets.token_hex(4)}"
    url = session.sqs.call("CreateQueue", {"QueueName": name}, what="cannot start")["QueueUrl"]
    try:
        yield name, url
    finally:
        session.sqs.call("DeleteQueue", {"QueueUrl": url}, what=f"cannot delete '{name}'")


def _measure(
    session: Session,
    title: str,
    queue: str | None,
    run: Run,
    *,
    connections: int,
    duration: float,
    rate: float | None,
    size: int,
    batch: int = 1,
) -> None:
    shape = load.Shape(connections, duration, size, rate, batch)
    measured = load.Measured()
    with _queue(session, queue) as (name, url):
        settings = session.settings
        target = load.Target(settings.endpoint, settings.region, url, settings.timeout_s)
        session.remark(f"{title}: {connections} connections for up to {duration:g} s on '{name}'")
        measured.start_s = time.perf_counter()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(target, shape, measured))
    result = {
        "bench": title,
        "queue": name,
        "connections": connections,
        "size_bytes": size,
        "rate_asked_per_s": rate,
        "batch": batch,
        **load.summary(measured),
    }
    _print(session, result)
    for text in measured.first_errors:
        click.echo(f"rejected: {text}", err=True)
    if measured.errors:
        raise click.exceptions.Exit(ExitCode.PARTIAL if measured.messages else ExitCode.FAILED)


def _print(session: Session, result: dict[str, Any]) -> None:
    if not session.out.is_table:
        session.out.one(result, name="bench")
        return
    latencies = result.pop("latency_ms")
    session.out.one(result)
    for what, points in latencies.items():
        numbers = "  ".join(f"{point} {value:,.2f} ms" for point, value in points.items())
        session.out.line(f"{what}: {numbers}")
