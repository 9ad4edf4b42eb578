"""``penstock quota``: limits (how fast) and quotas (how much) of a tenant.

Zero means "no limit" everywhere, ``default`` the default of this version. Values that ``set`` does
not name stay unchanged."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import click

from penstock.cli.client import Json
from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.quantity import bytes_of
from penstock.cli.session import Noun, Session, pass_session
from penstock.model.units import size

_COUNT_MAX = 2**53


class RateFlags(NamedTuple):
    field: str
    flag: str  # of the rate, followed by the flag of its burst
    burst_flag: str
    help: str


_RATES = (
    RateFlags("tenant_requests", "--requests-per-second", "--burst", "of the whole tenant"),
    RateFlags("tenant_bytes", "--bytes-per-second", "--burst-bytes", "of messages, in and out"),
    RateFlags("user_requests", "--user-requests-per-second", "--user-burst", "of each user"),
    RateFlags("queue_requests", "--queue-requests-per-second", "--queue-burst", "of each queue"),
)
_QUOTAS: Mapping[str, tuple[str, str]] = {
    "queues_max": ("--queues-max", "queues and topics"),
    "partitions_max": ("--partitions-max", "partitions of all queues and topics"),
    "stored_bytes_max": ("--stored-bytes-max", "bytes on disk"),
    "connections_max": ("--connections-max", "connections open at once"),
    "waits_max": ("--waits-max", "long polls waiting at once"),
    "groups_max": ("--groups-max", "consumer and share groups"),
    "offset_bytes_max": ("--offset-bytes-max", "bytes of committed offsets and their metadata"),
    "transactional_ids_max": ("--transactional-ids-max", "transactional ids"),
}
_DEFAULT = "default"


class _OrDefault(click.ParamType[Any]):
    """A quantity, or the word ``default``."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.name = f"{kind.name}|{_DEFAULT}"
        self._kind = kind

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        return value if value == _DEFAULT else self._kind.convert(value, param, ctx)


@click.group(cls=Noun)
def quota() -> None:
    """Show and set how much a tenant may have and how fast it may ask.

    Every tenant except the node's own has default quotas. A quota that is set replaces the default,
    and the largest share of one tenant of what the node has for all tenants."""


def _path(name: str) -> str:
    return f"quotas/{quote(name, safe='')}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,g}"


def _print(session: Session, found: Json) -> None:
    if not session.out.is_table:
        session.out.one(found)
        return
    item: dict[str, Any] = {"tenant": f"{found['name']} ({found['account']})"}
    for each in _RATES:
        is_default = each.field in found["defaults"]
        item[each.flag[2:]] = _rate(found["limits"][each.field], is_default=is_default)
    for action, rate in sorted(found["limits"]["operations"].items()):
        item[action] = _rate(rate)
    for field, (flag, _) in _QUOTAS.items():
        item[flag[2:]] = _quota(found, field)
    session.out.one(item, columns=[Column(key, key) for key in item])


def _quota(found: Json, field: str) -> str:
    """Return used, quota and share: ``12 of 500 (default), share 10,000``."""
    form = size if "bytes" in field else _number
    quota, used, share = (found[part].get(field) for part in ("quotas", "used", "shares"))
    is_default = field in found["defaults"]
    text = form(quota) if quota else "no limit"
    if used is not None:
        text = f"{form(used)} of {text}" if quota else f"{form(used)}, {text}"
    if quota and is_default:
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
@pass_session
def show(session: Session, name: str) -> None:
    """Show the limits and quotas of a tenant: used, quota and largest share.

    Connections, long polls, groups, offsets and transactional ids are counted by node: the numbers
    are those of the node that answers."""
    _print(session, session.admin.get(_path(name), what=f"cannot show the quotas of '{name}'"))


def _options(command: Callable[..., None]) -> Callable[..., None]:
    rate = click.FloatRange(min=0)
    for field, (flag, text) in reversed(list(_QUOTAS.items())):
        kind: Any = bytes_of(0, _COUNT_MAX) if "bytes" in field else click.IntRange(0, _COUNT_MAX)
        help_text = f"{text}; 0: no limit"
        command = click.option(flag, field, type=_OrDefault(kind), help=help_text)(command)
    for each in reversed(_RATES):
        is_bytes = each.field == "tenant_bytes"
        kind = bytes_of(0, _COUNT_MAX) if is_bytes else rate
        if each.field == "tenant_requests":
            kind = _OrDefault(kind)
        command = click.option(each.burst_flag, f"{each.field}_burst", type=kind, help="at once")(
            command
        )
        command = click.option(each.flag, each.field, type=kind, help=f"{each.help}; 0: no limit")(
            command
        )
    return command


@quota.command("set")
@click.argument("name", metavar="TENANT")
@_options
@click.option(
    "--operation",
    "operations",
    multiple=True,
    metavar="ACTION=RATE[:BURST]",
    help="such as sqs:PurgeQueue=1:5; a rate of 0 removes it; can be given many times",
)
@pass_session
def set_quotas(session: Session, name: str, operations: tuple[str, ...], **flags: Any) -> None:
    """Change limits or quotas of a tenant, such as --requests-per-second 100 --burst 200."""
    what = f"cannot set the quotas of '{name}'"
    limits: Json = {}
    if any(flags[f"{each.field}_burst"] is not None for each in _RATES):
        known = session.admin.get(_path(name), what=what)["limits"]
    else:
        known = {}
    for each in _RATES:
        per_s, burst = flags[each.field], flags[f"{each.field}_burst"]
        if per_s is None and burst is None:
            continue
        if per_s is None:
            per_s = known[each.field]["per_s"]
            if not per_s:
                raise click.UsageError(f"{each.burst_flag} needs {each.flag}: there is none yet.")
        if per_s == _DEFAULT:
            limits[each.field] = None
        else:
            limits[each.field] = {"per_s": per_s, "burst": burst or 0}
    if operations:
        limits["operations"] = dict(_operation(text) for text in operations)
    given = {field: flags[field] for field in _QUOTAS if flags[field] is not None}
    quotas = {field: None if value == _DEFAULT else value for field, value in given.items()}
    if not (limits or quotas):
        raise click.UsageError("Nothing to set: name at least one limit.")
    body = {"limits": limits, "quotas": quotas}
    _print(session, session.admin.call("PATCH", _path(name), body=body, what=what))


def _operation(text: str) -> tuple[str, dict[str, float] | None]:
    action, equals, numbers = text.partition("=")
    rate, _, burst = numbers.partition(":")
    try:
        per_s, at_once = float(rate), float(burst or 0)
    except ValueError:
        equals = ""
    if not action or not equals:
        raise Failure(
            f"'{text}' is no rate of an operation",
            "expected an action, an equals sign and a number",
            "write it like sqs:SendMessage=100 or sqs:SendMessage=100:200",
            exit_code=ExitCode.USAGE,
        )
    return action, {"per_s": per_s, "burst": at_once} if per_s else None
