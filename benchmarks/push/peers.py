"""Publish to receive, beside moto. The LocalStack of ``benchmarks.systems`` has SQS alone, and
ElasticMQ has no SNS."""

from benchmarks.push.bench import Bench
from benchmarks.push.client import BODY, RAW, Client, between, rate_of
from benchmarks.server import NotAvailable
from benchmarks.systems.moto import Moto

AT_ONCE = 32  # as in the benchmarks of queues


async def peers(bench: Bench) -> None:
    seconds, system = 4.0 / bench.part, Moto()
    own = await _rate(bench.client, seconds)
    folder = bench.folder / system.name
    folder.mkdir()
    try:
        system.prepare()
        server = system.start(folder=folder, cores=bench.cores)
    except NotAvailable as reason:
        print(f"{system.name} is not available: {reason}")
        return
    try:
        client = Client(bench.http, f"http://{server.host}:{server.port}")
        theirs = await _rate(client, seconds)
    finally:
        server.stop()
    text = f"publish to receive ({own:,.0f}/s) ÷ {system.name} ({theirs:,.0f}/s)"
    bench.add(text, own / theirs, least=10)


async def _rate(client: Client, seconds: float) -> float:
    """Return how many messages a second are published, received and deleted."""
    arn, url = await client.subscribed("peers", **RAW)

    async def pass_on() -> None:
        await client.publish(arn)
        while BODY not in (reply := await client.sqs("ReceiveMessage", QueueUrl=url)):
            pass
        receipt = between(reply, "ReceiptHandle")
        await client.sqs("DeleteMessage", QueueUrl=url, ReceiptHandle=receipt)

    await rate_of(pass_on, min(1.0, seconds), AT_ONCE)  # to warm up
    return await rate_of(pass_on, seconds, AT_ONCE)
