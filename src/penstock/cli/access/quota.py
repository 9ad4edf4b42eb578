"""Commands of ``penstock quota``, which shows and sets limits (how fast) and quotas (how much) of
a tenant. The value 0 means "no limit"; the value ``default`` restores the default."""

from collections.abc import Mapping
from typing import Any

import click

from penstock.cli.access.users import path_of
from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import Misuse
from penstock.cli.terminal.options import Parsed, Texts, bytes_of, repeatable, several
from penstock.cli.terminal.output import Column, Json
from penstock.model.units import size

_COUNT_MAX = 2**53


# Field, options of the rate and of the burst, and the meaning.
_RATES = (
    ("tenant_requests", "--requests-per-second", "--burst", "requests of the tenant"),
    ("tenant_bytes", "--bytes-per-second", "--burst-bytes", "bytes received and sent"),
    ("user_requests", "--user-requests-per-second", "--user-burst", "requests of each user"),
    ("queue_requests", "--queue-requests-per-second", "--queue-burst", "requests to each queue"),
)
# Quotas by field. The option has the name of the field, with dashes.
_QUOTAS: Mapping[str, str] = {
    "queues_max": "maximum number of queues and topics",
    "partitions_max": "maximum number of partitions",
    "stored_bytes_max": "maximum bytes on disk",
    "connections_max": "maximum number of open connections",
    "waits_max": "maximum number of waiting long polls",
    "groups_max": "maximum number of consumer and share groups",
    "offset_bytes_max": "maximum bytes of committed offsets and their metadata",
    "transactional_ids_max": "maximum number of transactional ids",
    "subscriptions_max": "maximum number of subscriptions",
}
_DEFAULT = "default"


def _or_default(kind: click.ParamType[Any]) -> Parsed:
    def parse(text: str) -> object:
        return text if text == _DEFAULT else kind.convert(text, None, None)

    return Parsed(f"{kind.name}|{_DEFAULT}", parse)


quota = Noun(
    "quota",
    help="""Show and set the limits (how fast) and quotas (how much) of a tenant.

    Every tenant except the server's own has default quotas, and may use only a part of each
    node's capacity (shown as "share"). A quota that you set replaces both.""",
)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,g}"


def _print(session: Session, found: Json) -> None:
    if not session.out.is_table:
        session.out.one(found)
        return
    item: dict[str, Any] = {"tenant": f"{found['name']} ({found['account']})"}
    for field, flag, _, _ in _RATES:
        item[flag[2:]] = _rate(found["limits"][field], is_default=field in found["defaults"])
    for action, rate in sorted(found["limits"]["operations"].items()):
        item[action] = _rate(rate)
    for field in _QUOTAS:
        item[field.replace("_", "-")] = _quota(found, field)
    session.out.one(item, columns=[Column(key, key) for key in item])


def _quota(found: Json, field: str) -> str:
    form = size if "bytes" in field else _number
    quota, used, share = (found[part].get(field) for part in ("quotas", "used", "shares"))
    text = form(quota) if quota else "no limit"
    if used is not None:
        text = f"{form(used)} of {text}" if quota else f"{form(used)}, {text}"
    if quota and field in found["defaults"]:
        text += f" ({_DEFAULT})"
        text += "" if share is None else f", share {form(share)}"
    return text


def _rate(rate: Mapping[str, float], *, is_default: bool = False) -> str:
    if not rate["per_s"]:
        return "no limit"
    burst = f", {_number(rate['burst'])} at once" if rate["burst"] else ""
    return f"{_number(rate['per_s'])}{burst}{f' ({_DEFAULT})' if is_default else ''}"


@quota.command()
@click.argument("name", metavar="TENANT")
def show(session: Session, name: str) -> None:
    """Show the limits, quotas and usage of a tenant.

    The usage of connections, long polls, groups, offsets and transactional ids covers only the node
    that replies."""
    what = f"cannot show the quotas of '{name}'"
    _print(session, session.admin.get(path_of("quotas", name), what=what))


def _options() -> list[Any]:
    options = []
    for field, flag, burst_flag, what in _RATES:
        kind: Any = click.FloatRange(min=0)
        if field == "tenant_bytes":
            kind = bytes_of(0, _COUNT_MAX)
        elif field == "tenant_requests":
            kind = _or_default(kind)
        text = f"maximum number of {what} per second; 0: no limit"
        options.append(click.option(flag, field, type=kind, help=text))
        text = f"maximum number of {what} in a burst"
        options.append(click.option(burst_flag, f"{field}_burst", type=kind, help=text))
    for field, text in _QUOTAS.items():
        kind = bytes_of(0, _COUNT_MAX) if "bytes" in field else click.IntRange(0, _COUNT_MAX)
        flag, text = f"--{field.replace('_', '-')}", f"{text}; 0: no limit"
        options.append(click.option(flag, field, type=_or_default(kind), help=text))
    return options


@quota.command("set")
@click.argument("name", metavar="TENANT")
@several(*_options())
@repeatable(
    "--operation operations",
    "ACTION=RATE[:BURST]",
    "rate limit of one action, such as sqs:PurgeQueue=1:5; 0: no limit",
)
def set_quotas(session: Session, name: str, operations: Texts, **flags: Any) -> None:
    """Change limits or quotas of a tenant. Example: --requests-per-second 100 --burst 200."""
    path, what = path_of("quotas", name), f"cannot set the quotas of '{name}'"
    limits: Json = {}
    known: Json = {}
    if any(flags[f"{field}_burst"] is not None for field, *_ in _RATES):
        known = session.admin.get(path, what=what)["limits"]
    for field, flag, burst_flag, _ in _RATES:
        per_s, burst = flags[field], flags[f"{field}_burst"]
        if per_s is None and burst is None:
            continue
        if per_s is None:
            per_s = known[field]["per_s"]
            if not per_s:
                raise click.UsageError(f"{burst_flag} needs {flag}, because no limit is set yet.")
        limits[field] = None if per_s == _DEFAULT else {"per_s": per_s, "burst": burst or 0}
    if operations:
        limits["operations"] = dict(_operation(text) for text in operations)
    given = {field: flags[field] for field in _QUOTAS if flags[field] is not None}
    quotas = {field: None if value == _DEFAULT else value for field, value in given.items()}
    if not (limits or quotas):
        raise click.UsageError("Nothing to change: give at least one limit or quota.")
    body = {"limits": limits, "quotas": quotas}
    _print(session, session.admin.call("PATCH", path, body=body, what=what))


def _operation(text: str) -> tuple[str, dict[str, float] | None]:
    action, equals, numbers = text.partition("=")
    rate, _, burst = numbers.partition(":")
    try:
        per_s, at_once = float(rate), float(burst or 0)
    except ValueError:
        equals = ""
    if not action or not equals:
        raise Misuse(
            f"'{text}' is not a valid limit",
            "a limit has the form ACTION=RATE or ACTION=RATE:BURST",
            "write a limit like sqs:SendMessage=100 or sqs:SendMessage=100:200",
        )
    return action, {"per_s": per_s, "burst": at_once} if per_s else None
