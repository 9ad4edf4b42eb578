"""Commands of ``penstock subscription``, which use the admin API: webhooks on queues and topics,
and subscriptions to SNS topics. SNS clients create the latter."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from penstock.cli.command import Noun, Session, confirm_name
from penstock.cli.terminal.failure import Failure, Misuse
from penstock.cli.terminal.options import Texts, count_option, option, repeatable, yes_option
from penstock.cli.terminal.output import Json, columns, field, moment, watch_options, watch_rows
from penstock.cli.topics.offsets import target_of

_TEST_WAIT_S = 70.0  # an endpoint may take a minute, and requests before it may wait
_NAME = "id"
_LIST_COLUMNS = columns("id ID, source, protocol, endpoint, state, paused")
_LAG_COLUMNS = columns("id ID, source, endpoint, lag#, oldest_age_s# OLDEST")
_DELIVERY_COLUMNS = columns(
    "at_ms TIME, outcome, status#, ms# MS, attempt#, partition# PART, offset#, message_id MESSAGE,"
    " reason",
    at_ms=moment,
)
_REPLAY_COLUMNS = columns("number#, state, partition# PART, start#, until#")
# Secrets on a command line can be seen by other users of the machine.
_SECRETS = ("secret", "auth.password", "auth.token", "auth.value", "auth.key")
_RESTORED = "restored"  # why a subscription is paused, see node/restoring.py
_NESTED = ("auth", "headers", "retry")

subscription = Noun(
    "subscription",
    help="Create, list, show, set, delete, pause, test, replay webhooks; manage SNS subscriptions.",
)
_settings_option = click.option(
    "--settings",
    "file",
    metavar="FILE",
    help="JSON file with settings (- for stdin); secrets can be given only here",
)


def _ask(
    session: Session,
    act: str,
    name: str,
    path: str = "",
    *,
    method: str = "POST",
    body: Json | None = None,
    query: Json | None = None,
    wait_s: float = 0.0,
) -> Json:
    """Send a request about a subscription, given by its id or ARN. ``act`` is a verb."""
    target = f"subscriptions/{quote(name.rpartition(':')[2], safe='')}{path}"
    sent = {} if body is None and method in ("POST", "PATCH") else body
    what = f"cannot {act} subscription '{name}'"
    return session.admin.call(method, target, query or {}, body=sent, what=what, wait_s=wait_s)


# ── Settings ─────────────────────────────────────────────────────────────────────────────────


def _settings_of(pairs: Texts, file: str | None) -> Json:
    """Return settings from a file and from NAME=VALUE, of which the latter win."""
    settings = {} if file is None else _read(file)
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not name or not sign:
            raise click.UsageError(f"'{pair}' is not of the form NAME=VALUE.")
        if name in _SECRETS:
            raise Misuse(
                f"cannot set {name} on the command line",
                "other users of this machine can see it",
                "write it to a JSON file and give --settings FILE",
            )
        outer, _, inner = name.partition(".")
        if inner and outer in _NESTED:
            members = settings.setdefault(outer, {})
            if not isinstance(members, dict):
                raise Misuse(f"cannot set {name}", f"{outer} is not an object in '{file}'")
            members[inner] = text if outer == "headers" else _value(text)
        else:
            settings[name] = text if name == "filter" else _value(text)
    return settings


def _value(text: str) -> Any:
    """Return a number, true, false, null or other JSON; any other text as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read(file: str) -> Json:
    what = f"cannot read '{file}'"
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        found = json.loads(text)
    except OSError as error:
        raise Misuse(what, str(error.strerror)) from error
    except ValueError as error:
        raise Misuse(what, f"the file is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise Misuse(what, "the file is not a JSON object")
    return found


# ── Create, list, show, change, delete ───────────────────────────────────────────────────────


@subscription.command()
@repeatable("--set pairs", "NAME=VALUE", "setting, such as timeout_ms=5000 or retry.attempts_max=3")
@_settings_option
@option("--from start", ["latest", "earliest"], "first message to send", default="latest")
@click.option("--paused", is_flag=True, help="send nothing until `penstock subscription resume`")
def create(
    session: Session,
    source: str,
    url: str,
    pairs: Texts,
    file: str | None,
    start: str,
    paused: bool,
) -> None:
    """Create a webhook: send the messages of SOURCE to URL.

    SOURCE is the name or ARN of a queue, a Kafka topic or an SNS topic. With the setting
    mode=consume, delivered messages are deleted from the queue. The signing secret is printed
    once."""
    body = {"source": source, "endpoint": url, "start": start, "paused": paused}
    body["settings"] = _settings_of(pairs, file)
    made = session.admin.create_subscription(body, what=f"cannot create a webhook on '{source}'")
    secret = made.pop("secret", None)
    shown = {key: made[key] for key in ("id", "source", "endpoint", "state", "paused")}
    _print_secret(session, {**shown, "secret": secret} if secret else shown)


def _print_secret(session: Session, item: Json) -> None:
    session.out.one(item, name=_NAME)
    session.out.flush()
    if "secret" in item and session.out.format_of("json") == "name":
        session.remark(
            "the secret was not printed: `penstock subscription rotate` prints a new one"
        )
    elif "secret" in item:
        session.remark("save the secret now: it is not shown again")


@subscription.command("list")
def list_subscriptions(session: Session, source: str | None) -> None:
    """List all subscriptions, or those of the queue or topic SOURCE."""
    found = session.admin.subscriptions(source)
    session.out.many(found, columns=_LIST_COLUMNS, name=_NAME, empty="no subscriptions")


@subscription.command()
def show(session: Session, subscription: str) -> None:
    """Show the settings, the status and the lag of a subscription."""
    found = _ask(session, "show", subscription, method="GET")
    if not session.out.is_table:
        session.out.one(found, name=_NAME)
        return
    settings = found.pop("settings", None) or found.pop("attributes", {})
    replays, status = found.pop("replays"), found.pop("status") or {}
    found["oldest_age_s"] = _seconds(found.pop("oldest_age_ms"))
    shown = {key: value for key, value in (found | status).items() if value not in ("", 0)}
    session.out.one(shown, columns=[field(key) for key in shown])
    for name, value in settings.items():
        inner = value if isinstance(value, dict) and name in _NESTED else None
        for key, text in [(name, value)] if inner is None else _dotted(name, inner):
            session.out.line(f"{key}={text if isinstance(text, str) else json.dumps(text)}")
    if replays:
        session.out.line("")
        session.out.many(_replay_rows(replays), columns=_REPLAY_COLUMNS)


def _dotted(name: str, members: Json) -> Iterator[tuple[str, Any]]:
    return ((f"{name}.{key}", value) for key, value in members.items())


def _replay_rows(replays: Sequence[Json]) -> Iterator[Json]:
    for each in replays:
        for partition, (start, until) in enumerate(
            zip(each["starts"], each["until"], strict=False)
        ):
            if start < until:
                row = {"number": each["number"], "state": each.get("state", "waiting")}
                yield {**row, "partition": partition, "start": start, "until": until}


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1_000


@subscription.command("set")
@click.argument("pairs", nargs=-1, metavar="[NAME=VALUE]...")
@_settings_option
def set_settings(session: Session, subscription: str, pairs: Texts, file: str | None) -> None:
    """Change settings of a webhook, such as timeout_ms=5000. Other settings stay unchanged."""
    given = _settings_of(pairs, file)
    if not given:
        raise click.UsageError("Nothing to change: give at least one setting.")
    if any(pair.startswith("headers.") for pair in pairs):
        before = _ask(session, "show", subscription, method="GET").get("settings", {})
        given["headers"] = {**before.get("headers", {}), **given["headers"]}
    _ask(session, "change", subscription, method="PATCH", body=given)
    session.remark(f"changed {subscription}")


@subscription.command()
@yes_option
def delete(session: Session, subscription: str, yes: bool) -> None:
    """Delete a subscription. Messages that it has not delivered are not sent."""
    _ask(session, "delete", subscription, method="GET")  # before the prompt: fails if missing
    confirm_name(subscription, verb="delete", is_sure=yes)
    _ask(session, "delete", subscription, method="DELETE")
    session.remark(f"deleted {subscription}")


@subscription.command()
def confirm(session: Session, subscription: str) -> None:
    """Confirm a pending SNS subscription, without the token that was sent to its endpoint. The
    endpoint of a pending webhook is asked for its permission again."""
    found = _ask(session, "confirm", subscription, "/confirm")
    if found["state"] == "pending":
        session.remark(f"asking the endpoint: see `penstock subscription show {subscription}`")
    else:
        session.remark(f"confirmed {subscription}")


@subscription.command()
@option("--reason", "TEXT", "reason, shown by `penstock subscription list`")
def pause(session: Session, subscription: str, reason: str | None) -> None:
    """Send nothing to the endpoint until the subscription is resumed. Messages are kept for the
    retention time of their source."""
    body = {} if reason is None else {"reason": reason}
    _ask(session, "pause", subscription, "/pause", body=body)
    session.remark(f"paused; undo it with `penstock subscription resume {subscription}`")


@subscription.command()
@click.option(
    "--restored", is_flag=True, help="all subscriptions that `penstock backup restore` has paused"
)
def resume(session: Session, subscriptions: Texts, restored: bool) -> None:
    """Resume paused subscriptions."""
    if bool(subscriptions) == restored:
        raise click.UsageError("Give subscriptions, or --restored.")
    if restored:
        found = session.admin.subscriptions()
        subscriptions = tuple(each["id"] for each in found if each["paused"] == _RESTORED)
    for each in subscriptions:
        _ask(session, "resume", each, "/resume")
        session.remark(f"resumed {each}")


@subscription.command()
def rotate(session: Session, subscription: str) -> None:
    """Create a new signing secret. Requests are signed with the old one too for 24 hours."""
    _print_secret(session, _ask(session, "rotate the secret of", subscription, "/rotate"))


# ── Sending again ────────────────────────────────────────────────────────────────────────────


@subscription.command()
@option("--body", "TEXT", "body of the test message [default: the newest message of the source]")
def test(session: Session, subscription: str, body: str | None) -> None:
    """Send one test request to the endpoint and print its reply. Exit code 1 if it fails."""
    given = {} if body is None else {"body": body}
    _show_reply(
        session, _ask(session, "test", subscription, "/test", body=given, wait_s=_TEST_WAIT_S)
    )


@subscription.command()
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
def redeliver(session: Session, subscription: str, partition: int, offset: int) -> None:
    """Send one message again, given by its partition and offset."""
    body = {"partition": partition, "offset": offset}
    reply = _ask(
        session, "redeliver by", subscription, "/redeliver", body=body, wait_s=_TEST_WAIT_S
    )
    _show_reply(session, reply)


def _show_reply(session: Session, reply: Json) -> None:
    session.out.one(reply, name="status")
    if not reply["is_delivered"]:
        session.out.flush()
        status = reply["status"]
        why = reply["reason"] or f"it replied with HTTP status {status}"
        raise Failure("the endpoint did not accept the message", why)


@subscription.command()
@option("--from start", "POSITION", "first message to send again", required=True)
@option("--to until", "POSITION", "end of the range [default: now]")
def replay(session: Session, subscription: str, start: str, until: str | None) -> None:
    """Send old messages again, after new ones.

    POSITION is earliest, a time like 2026-01-31T12:00:00Z, -90m for 90 minutes ago, or offsets like
    0:1500,1:1490 (PARTITION:OFFSET). Partitions without an offset are not sent."""
    body = _position(start, "--from", "start")
    if until is not None:
        body |= _position(until, "--to", "until")
    made = _ask(session, "replay", subscription, "/replay", body=body)["replay"]
    if session.out.is_table:
        session.out.many(_replay_rows([made]), columns=_REPLAY_COLUMNS)
    else:
        session.out.one(made, name="number")


def _position(text: str, flag: str, name: str) -> Json:
    if ":" in text and "-" not in text:
        pairs = [part.partition(":") for part in text.split(",")]
        try:
            return {f"{name}_offsets": {partition: int(offset) for partition, _, offset in pairs}}
        except ValueError:
            raise Misuse(
                f"cannot use {flag} '{text}'",
                "an offset is not a number",
                "write PARTITION:OFFSET pairs like 0:1500,1:1490",
            ) from None
    target = target_of(text, what=f"cannot use {flag}", option=flag)
    if target.time is None:
        raise Misuse(
            f"cannot use {flag} '{text}'",
            "an offset needs its partition",
            "write PARTITION:OFFSET pairs like 0:1500,1:1490",
        )
    if target.time < 0:  # earliest or latest
        if name == "start" and text in ("earliest", "begin"):
            return {"earliest": True}
        raise Misuse(f"cannot use {flag} '{text}'", "the range would be empty")
    return {f"{name}_ms": target.time}


# ── Deliveries and lag ───────────────────────────────────────────────────────────────────────


@subscription.command()
@count_option(1_000, 20, "maximum number of attempts to show")
def deliveries(session: Session, subscription: str, count: int) -> None:
    """Show the newest attempts to deliver messages, newest first."""
    query = {"limit": count}
    found = _ask(
        session, "show deliveries of", subscription, "/deliveries", method="GET", query=query
    )
    session.out.many(
        found["deliveries"], columns=_DELIVERY_COLUMNS, name="outcome", empty="no deliveries"
    )


@subscription.command()
@watch_options("repeat until Ctrl-C")
def lag(
    session: Session, subscriptions: Texts, watch: bool, interval: float, samples: int | None
) -> None:
    """Show the number of undelivered messages and the age of the oldest, of the named
    subscriptions or of all."""

    def rows() -> Iterator[Json]:
        for name in subscriptions or [one["id"] for one in session.admin.subscriptions()]:
            found = _ask(session, "show", name, method="GET")
            row = {key: found[key] for key in ("id", "source", "endpoint", "lag")}
            yield {**row, "oldest_age_s": _seconds(found["oldest_age_ms"])}

    if watch:
        watch_rows(session.out, rows, _LAG_COLUMNS, interval, samples, name=_NAME)
        return
    session.out.many(rows(), columns=_LAG_COLUMNS, name=_NAME, empty="no subscriptions")
