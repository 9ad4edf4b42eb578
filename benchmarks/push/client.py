"""A client of a server's SQS and SNS interfaces and of its admin API."""

import asyncio
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any, Final

from benchmarks.push.endpoint import SECONDS_MAX
from penstock.net.http.client import HttpClient
from penstock.net.http.client_messages import ClientRequest, Origin

BODY: Final = "x" * 1_024
# Some servers choose the service by the signature, but none of those measured here checks it.
SIGNED: Final = (
    "AWS4-HMAC-SHA256 Credential=key/20261118/us-east-1/{}/aws4_request,"
    " SignedHeaders=host, Signature=none"
)
RAW: Final = {"RawMessageDelivery": "true"}


class Client:
    def __init__(self, http: HttpClient, url: str, admin: str = "") -> None:
        self._http, self._admin = http, admin
        found = urllib.parse.urlsplit(url)
        self._origin = Origin(found.hostname or "", found.port or 0)

    async def _call(self, service: str, form: dict[str, str]) -> str:
        request = ClientRequest(
            origin=self._origin,
            headers=(
                ("Content-Type", "application/x-www-form-urlencoded"),
                ("Authorization", SIGNED.format(service)),
            ),
            body=urllib.parse.urlencode(form).encode(),
        )
        reply = await self._http.send(request, addresses=("127.0.0.1",), timeout_s=SECONDS_MAX)
        assert reply.status == 200, reply.body
        return reply.body.decode()

    async def sns(self, action: str, **fields: str) -> str:
        return await self._call("sns", {"Action": action, "Version": "2010-03-31", **fields})

    async def sqs(self, action: str, **fields: str) -> str:
        return await self._call("sqs", {"Action": action, "Version": "2012-11-05", **fields})

    async def topic(self, name: str) -> str:
        return between(await self.sns("CreateTopic", Name=name), "TopicArn")

    async def queue(self, name: str) -> str:
        return between(await self.sqs("CreateQueue", QueueName=name), "QueueUrl")

    async def subscribe_queue(self, arn: str, name: str, **attributes: str) -> None:
        fields: dict[str, str] = {}
        for number, (key, value) in enumerate(attributes.items(), 1):
            entry = f"Attributes.entry.{number}"
            fields |= {f"{entry}.key": key, f"{entry}.value": value}
        queue = arn.replace(":sns:", ":sqs:").rpartition(":")[0] + f":{name}"
        await self.sns("Subscribe", TopicArn=arn, Protocol="sqs", Endpoint=queue, **fields)

    async def subscribed(self, name: str, **attributes: str) -> tuple[str, str]:
        """Create a topic with one queue. Returns the ARN of the topic and the URL of the queue."""
        arn, url = await self.topic(name), await self.queue(name)
        await self.subscribe_queue(arn, name, **attributes)
        return arn, url

    async def publish(self, arn: str, message: str = BODY, **fields: str) -> None:
        await self.sns("Publish", TopicArn=arn, Message=message, **fields)

    async def fill(self, arn: str, count: int) -> None:
        """Publish messages of 1 KiB, ten in a request."""
        for start in range(0, count, 160):
            batches = range(start, min(start + 160, count), 10)
            await asyncio.gather(*(self._publish_ten(arn, first) for first in batches))

    async def _publish_ten(self, arn: str, first: int) -> None:
        fields = {"TopicArn": arn}
        for number in range(10):
            entry = f"PublishBatchRequestEntries.member.{number + 1}"
            fields |= {f"{entry}.Id": str(first + number), f"{entry}.Message": BODY}
        await self.sns("PublishBatch", **fields)

    # ── Admin API ────────────────────────────────────────────────────────────────────────────

    def ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"{self._admin}/api/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as reply:
            return json.loads(reply.read())

    def webhook(self, source: str, url: str, *, paused: bool = False, **settings: object) -> str:
        body = {"source": source, "endpoint": url, "settings": settings, "paused": paused}
        return str(self.ask("POST", "/subscriptions", body)["id"])

    def change(self, subscription: str, action: str, **body: object) -> None:
        """Do something with a subscription: pause, resume, replay."""
        self.ask("POST", f"/subscriptions/{subscription}/{action}", body)


def between(text: str, name: str) -> str:
    """Return the text of the first XML element of that name."""
    return text.partition(f"<{name}>")[2].partition(f"</{name}>")[0]


async def rate_of(work: Callable[[], Awaitable[object]], seconds: float, at_once: int) -> float:
    """Return how often per second something is done, ``at_once`` at the same time."""
    count, began = 0, time.monotonic()

    async def repeat() -> None:
        nonlocal count
        while time.monotonic() < began + seconds:
            await work()
            count += 1

    await asyncio.gather(*(repeat() for _ in range(at_once)))
    return count / (time.monotonic() - began)
