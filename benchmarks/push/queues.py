"""Figures of copies to queues. Times are those of the quietest round."""

import json
import subprocess
import sys
import tempfile
import time

from benchmarks.proc import cpu_seconds
from benchmarks.push.bench import Bench
from benchmarks.push.client import BODY, RAW, rate_of

ROUNDS = 5
AT_ONCE = 16


async def publish_rate(bench: Bench) -> None:
    client, seconds = bench.client, 3.0 / bench.part
    raw, url = await client.subscribed("raw", **RAW)
    wrapped, _ = await client.subscribed("wrapped")

    async def send() -> None:
        await client.sqs("SendMessage", QueueUrl=url, MessageBody=BODY)

    sends = await rate_of(send, seconds, AT_ONCE)
    publishes = await rate_of(lambda: client.publish(raw), seconds, AT_ONCE)
    with_envelope = await rate_of(lambda: client.publish(wrapped), seconds, AT_ONCE)
    bench.add("Publish to one raw queue ÷ SendMessage", publishes / sends, least=0.35)
    bench.add("Publish to one queue with envelope, a second", with_envelope, least=1_000)


async def found_at_once(bench: Bench) -> None:
    """Publish, then receive without waiting: the message must be there."""
    client, count, found = bench.client, 10_000 // bench.part, 0
    arn, url = await client.subscribed("found", **RAW)
    for number in range(count):
        await client.publish(arn, f"number {number}")
        body, is_first = f"<Body>number {number}</Body>", True
        while body not in await client.sqs(
            "ReceiveMessage", QueueUrl=url, VisibilityTimeout="3600"
        ):
            is_first = False  # the next message must not be counted too
        found += is_first
    bench.add(f"of {count:,} messages, found by the next receive", found, least=count)


async def fan_out(bench: Bench) -> None:
    client, count = bench.client, 1_000 // bench.part
    arn = await client.topic("wide")
    names = [f"wide-{number}" for number in range(count)]
    urls = [await client.queue(name) for name in names]
    for name in names:
        await client.subscribe_queue(arn, name, **RAW)
    await client.publish(arn)
    took_ms, bare_ms = [], []
    for _ in range(ROUNDS):
        bare_ms.append(_bare_appends_ms(bench, count))
        for _ in range(2):
            began = time.monotonic()
            await client.publish(arn)
            while "<Message>" not in await client.sqs("ReceiveMessage", QueueUrl=urls[-1]):
                pass
            took_ms.append((time.monotonic() - began) * 1_000)
    text = f"one message to {count:,} queues ({min(took_ms):.0f} ms) ÷ bare appends"
    bench.add(text, min(took_ms) / min(bare_ms), most=1.6)


def _bare_appends_ms(bench: Bench, count: int) -> float:
    """Return how long a broker takes for one append to each of ``count`` queues."""
    fsync = "always" if bench.is_synced else "never"
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        command = [sys.executable, "-m", "benchmarks.push.bare_appends", folder, str(count), fsync]
        on_core = ["taskset", "-c", ",".join(map(str, bench.cores)), *command]
        return float(subprocess.run(on_core, check=True, capture_output=True, text=True).stdout)


async def filters(bench: Bench) -> None:
    """A thousand filter policies of four kinds, of which one matches."""
    client, count, publishes = bench.client, 1_000, 500 // bench.part
    arn, _ = await client.subscribed("filtered", FilterPolicy=_policy(0), **RAW)
    # Queues that do not exist: an unwanted copy would be counted as refused.
    for number in range(1, count):
        name, policy = f"filtered-{number}", _policy(number)
        await client.subscribe_queue(arn, name, FilterPolicy=policy, **RAW)
    attributes: dict[str, str] = {}
    for number, (name, kind, value) in enumerate(
        (("kind", "String", "kind-0"), ("size", "Number", "0"), ("zone", "String", "none")), 1
    ):
        entry = f"MessageAttributes.entry.{number}"
        attributes |= {
            f"{entry}.Name": name,
            f"{entry}.Value.DataType": kind,
            f"{entry}.Value.StringValue": value,
        }
    await client.publish(arn, **attributes)
    began = cpu_seconds(bench.pid)
    for _ in range(publishes):
        await client.publish(arn, **attributes)
    cost_ms = (cpu_seconds(bench.pid) - began) / publishes * 1_000
    text = f"a message on {count:,} filter policies, one match, ms of processor"
    bench.add(text, cost_ms, most=5)


def _policy(number: int) -> str:
    kinds: tuple[dict[str, list[object]], ...] = (
        {"kind": [f"kind-{number}"]},
        {"kind": [{"prefix": f"other-{number}"}]},
        {"size": [{"numeric": [">=", number, "<", number + 1]}]},
        {"kind": [{"anything-but": ["kind-1"]}], "zone": [{"suffix": f"-{number}"}]},
    )
    return json.dumps(kinds[number % len(kinds)])
