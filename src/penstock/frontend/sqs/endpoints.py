"""Paths of the SQS port besides actions: health, information about the node, and a reset that
deletes all queues, for test suites. Replies are JSON; no signature is needed."""

from contextlib import suppress
from typing import Any

import msgspec

from penstock import __version__
from penstock.frontend.sqs.context import Context
from penstock.model.errors import TopicNotFound
from penstock.model.names import is_internal
from penstock.net.http.exchange import HttpReply, HttpRequest

PREFIXES = ("/_penstock/", "/moto-api/")
_RESETS = ("/_penstock/reset", "/moto-api/reset")
# Content types that a web page may send to another origin without a preflight request (CORS).
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")


async def reply_to(context: Context, http: HttpRequest) -> HttpReply:
    path = http.path.rstrip("/")
    is_read = http.method in ("GET", "HEAD")
    if path in _RESETS:
        return await _reset(context, http)
    if path == "/_penstock/health" and is_read:
        return _json(200, status="ok")
    if path == "/_penstock/info" and is_read:
        config = context.config
        return _json(
            200,
            version=__version__,
            admin=config.admin_url() if callable(config.admin_url) else config.admin_url,
            kafka=config.kafka_url,
            account=config.account,
            region=config.region,
        )
    return _json(404, error="Unknown path.")


def greeting(http: HttpRequest) -> HttpReply:
    if http.path == "/":
        return _json(
            200,
            service="Penstock",
            version=__version__,
            hint="This is an SQS endpoint: point an SQS client's endpoint URL here.",
            health="/_penstock/health",
        )
    # For example the URL of a queue in a browser: the reply of SQS.
    return HttpReply(404, b"<UnknownOperationException/>\n", "text/xml")


async def _reset(context: Context, http: HttpRequest) -> HttpReply:
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not context.config.is_dev or context.config.is_auth_on:
        return _json(403, error="Reset is available in development mode only.")
    if http.method != "POST":
        return _json(405, error="Reset needs the method POST.")
    if "origin" in http.headers:
        return _json(403, error="Reset rejects requests of web pages (header Origin).")
    if kind in _FORMS:
        return _json(
            415, error=f"Reset rejects content type {kind}: send no body, as with curl -X POST."
        )
    now_ms = context.clock.wall_ms()
    count = 0
    for topic in tuple(context.everything.all_topics()):
        is_ours = not topic.is_queue and is_internal(topic.name)
        if topic.deleted_at_ms is not None or is_ours:
            continue
        with suppress(TopicNotFound):  # deleted by another request since
            await context.everything.delete(topic.account, topic.region, topic.name, now_ms=now_ms)
            count += 1
    context.reset_at_ms = context.clock.wall_ms()  # deleted names may be used again
    context.purges.clear()
    return _json(200, status="ok", deleted_queues=count)


def _json(status: int, /, **fields: Any) -> HttpReply:
    return HttpReply(status, msgspec.json.encode(fields), "application/json")
