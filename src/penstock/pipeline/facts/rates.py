"""Parses rate cards, which ``docs/pipeline.md`` describes, and computes the lines of invoices.

Prices are whole millionths of the currency, so no sum depends on floating-point rounding; a line is
rounded once, half up. Usage is priced by the version of the card that was valid in its hour. The
free amount is assigned to earlier versions first, and to classes of operations in alphabetical
order: any order is correct, but it must always be the same."""

import datetime
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.pipeline.toml_tables import TomlTable, parse_toml

GB: Final = 1_000_000_000
MILLION: Final = 1_000_000
MINUTES_PER_DAY: Final = 1_440
VERSIONS_MAX: Final = 1_000
OTHER: Final = "other"
_AMOUNTS: Final = (
    "free_requests", "free_bytes_out", "free_storage_bytes", "bytes_out_micros", "storage_micros",
)  # fmt: skip


class RatesInvalid(Exception):
    """Raised if a rate card is invalid."""


class RequestsBy(StrEnum):
    REQUESTS = "requests"
    UNITS_64K = "units64k"


class Use(NamedTuple):
    """The usage of one operation by one tenant while one version of the rate card was valid."""

    tenant: str
    op: str
    version: int  # of the card
    requests: int = 0
    units64k: int = 0
    refused: int = 0
    messages: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    byte_minutes: int = 0


class Line(NamedTuple):
    """One line of an invoice. ``quantity`` is the total usage, of which ``free`` costs nothing."""

    item: str  # requests:<class>, bytes_out, storage
    version: int
    quantity: int
    refused: int
    free: int
    price_micros: int
    amount_micros: int


@dataclass(frozen=True, slots=True)
class Version:
    valid_from: datetime.date
    request_micros: Mapping[str, int]
    classes: Mapping[str, str] = field(default_factory=dict)  # operation: class
    requests_by: RequestsBy = RequestsBy.REQUESTS
    bills_refused: bool = False
    free_requests: int = 0
    free_bytes_out: int = 0
    free_storage_bytes: int = 0
    bytes_out_micros: int = 0
    storage_micros: int = 0


class RateCard(NamedTuple):
    currency: str
    versions: Sequence[Version]  # sorted by ``valid_from``

    def starts(self) -> list[datetime.date]:
        return [version.valid_from for version in self.versions]


def lines_of(uses: Iterable[Use], card: RateCard, *, days: int) -> list[Line]:
    """Return the invoice lines of one tenant for a month with ``days`` days."""
    lines: list[Line] = []
    spent = {"requests": 0, "bytes_out": 0, "storage": 0}  # free amounts used so far
    ordered = sorted(uses, key=lambda use: use.version)
    minutes = days * MINUTES_PER_DAY

    def add(item: str, quantity: int, refused: int, price: int, per: int, free: int) -> None:
        if not quantity:
            return
        kind, billable = item.partition(":")[0], quantity - refused
        given = min(billable, max(0, free - spent[kind]))
        spent[kind] += given
        amount = (2 * (billable - given) * price + per) // (2 * per)  # rounded half up
        lines.append(Line(item, number, quantity, refused, given, price, amount))

    for number, own in itertools.groupby(ordered, key=lambda use: use.version):
        version = card.versions[number]
        requests, refused = Counter[str](), Counter[str]()
        out = stored = 0
        for use in own:
            name = version.classes.get(use.op, OTHER)
            count = use.units64k if version.requests_by is RequestsBy.UNITS_64K else use.requests
            requests[name] += count
            # A refused request is one unit: its body was not accepted.
            refused[name] += 0 if version.bills_refused else min(use.refused, count)
            out += use.bytes_out
            stored += use.byte_minutes
        for name in sorted(requests):
            price = version.request_micros.get(name, version.request_micros[OTHER])
            free, count = version.free_requests, requests[name]
            add(f"requests:{name}", count, refused[name], price, MILLION, free)
        add("bytes_out", out, 0, version.bytes_out_micros, GB, version.free_bytes_out)
        free_stored = version.free_storage_bytes * minutes
        add("storage", stored, 0, version.storage_micros, GB * minutes, free_stored)
    return lines


def parse(text: str) -> RateCard:
    data = parse_toml(text, RatesInvalid)
    card = TomlTable("the rate card", data, RatesInvalid)
    currency = card.text("currency")
    if not (len(currency) == 3 and currency.isupper()):
        raise RatesInvalid("currency must be three capital letters, like EUR")
    raw = data.pop("version", None)
    if not isinstance(raw, list) or not raw or len(raw) > VERSIONS_MAX:
        raise RatesInvalid(f"the rate card must have 1 to {VERSIONS_MAX} [[version]] tables")
    card.finish()
    versions = [_version(number, each) for number, each in enumerate(raw, 1)]
    versions.sort(key=lambda version: version.valid_from)
    for before, after in itertools.pairwise(versions):
        if before.valid_from == after.valid_from:
            raise RatesInvalid(f"two versions have the same valid_from, {after.valid_from}")
    return RateCard(currency, versions)


def _version(number: int, raw: Any) -> Version:
    if not isinstance(raw, dict):
        raise RatesInvalid("each version must be a table that begins with [[version]]")
    given = TomlTable(f"version {number}", raw, RatesInvalid)
    valid_from = raw.pop("valid_from", None)
    if not isinstance(valid_from, datetime.date) or isinstance(valid_from, datetime.datetime):
        raise given.wrong("valid_from must be a date without a time, such as 2026-01-01")
    prices = given.table("request_micros")
    if OTHER not in prices:
        raise given.wrong("request_micros must be a table with a price for 'other'")
    priced = TomlTable(f"version {number}, request_micros", dict(prices), RatesInvalid)
    version = Version(
        valid_from=valid_from,
        request_micros={name: priced.whole(name) for name in prices},
        classes=_classes(given, prices),
        requests_by=given.choice("requests_by", RequestsBy, RequestsBy.REQUESTS),
        bills_refused=given.flag("bills_refused", default=False),
        **{name: given.whole(name, 0) for name in _AMOUNTS},
    )
    given.finish()
    return version


def _classes(given: TomlTable, prices: Mapping[str, Any]) -> dict[str, str]:
    classes = TomlTable("classes", given.table("classes"), RatesInvalid)
    found: dict[str, str] = {}
    for name in classes.names():
        if name not in prices:
            raise given.wrong(f"class '{name}' has no price in request_micros")
        for op in classes.texts(name):
            if op in found:
                raise given.wrong(f"operation {op} is in two classes")
            found[op] = name
    return found
