"""What is asked for by path and not by action: health, what this is, and a clean slate for test
suites. JSON, no signature; nothing here shows anything of a queue's content."""

from collections.abc import Mapping

import msgspec

from penstock import __version__
from penstock.frontend.context import Context
from penstock.model.errors import TopicNotFound
from penstock.model.names import is_internal
from penstock.net.exchange import HttpReply, HttpRequest

PREFIXES = ("/_penstock/", "/moto-api/")
_RESETS = ("/_penstock/reset", "/moto-api/reset")
# What a web page can send to another origin without asking that origin first (CORS).
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
_JSON = "application/json"


async def answer(context: Context, request: HttpRequest) -> HttpReply:
    path = request.path.rstrip("/")
    if path in _RESETS:
        return await _reset(context, request)
    if path == "/_penstock/health" and request.method in ("GET", "HEAD"):
        return _json(200, {"status": "ok"})
    if path == "/_penstock/info" and request.method in ("GET", "HEAD"):
        return _json(200, info(context))
    return _json(404, {"error": "There is nothing at this path."})


def info(context: Context) -> dict[str, str | None]:
    config = context.config
    admin = config.admin_url() if callable(config.admin_url) else config.admin_url
    return {
        "version": __version__,
        "admin": admin,
        "kafka": config.kafka_url,
        "account": config.account,
        "region": config.region,
    }


def greeting(request: HttpRequest) -> HttpReply:
    """For a person or a probe that opened the endpoint itself: no action was asked for."""
    if request.path == "/":
        return _json(
            200,
            {
                "service": "Penstock",
                "version": __version__,
                "hint": "This is an SQS endpoint: point an SQS client's endpoint URL here.",
                "health": "/_penstock/health",
            },
        )
    # In particular a queue's URL opened in a browser: the answer the original gives there.
    return HttpReply(404, b"<UnknownOperationException/>\n", "text/xml")


async def _reset(context: Context, request: HttpRequest) -> HttpReply:
    if not context.config.is_dev or context.config.is_auth_on:
        return _json(403, {"error": "Reset is only there in development mode."})
    if request.method != "POST":
        return _json(405, {"error": "Reset needs a POST."})
    if "origin" in request.headers:
        return _json(403, {"error": "Reset rejects requests by web pages (header Origin)."})
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        return _json(
            415, {"error": f"Reset rejects content type {kind}: send no body, as curl -X POST."}
        )
    now_ms = context.clock.wall_ms()
    count = 0
    for topic in tuple(context.everything.all_topics()):
        is_ours = not topic.is_queue and is_internal(topic.name)
        if topic.deleted_at_ms is not None or is_ours:
            continue
        try:
            await context.everything.delete(topic.account, topic.region, topic.name, now_ms=now_ms)
        except TopicNotFound:
            continue  # deleted by someone else in the meantime
        count += 1
    context.reset_at_ms = context.clock.wall_ms()  # names deleted up to now may be used again
    context.purges.clear()
    return _json(200, {"status": "ok", "deleted_queues": count})


def _json(status: int, fields: Mapping[str, str | int | None]) -> HttpReply:
    return HttpReply(status, msgspec.json.encode(fields), _JSON)
