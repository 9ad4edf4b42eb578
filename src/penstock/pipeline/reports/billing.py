"""Report ``billing``: the amounts that tenants owe, from the invoices of the job ``billing``.

Only the last revision of a tenant's month counts; earlier ones stay in the lake. Amounts are summed
as whole millionths, so the total of a table is exactly the sum of its rows.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.pipeline.job import Job, JobContext, Mode, require_table
from penstock.pipeline.jobs.billing import INVOICE, INVOICE_LINE
from penstock.pipeline.lake import Lake
from penstock.pipeline.reports import charts, numbers
from penstock.pipeline.reports.output import options, write
from penstock.pipeline.reports.page import ROWS_MAX, Column, Page, Plot, Section, Table
from penstock.pipeline.reports.rows import rows as read

CSV_COLUMNS: Final = (
    "month", "tenant", "status", "revision", "currency", "item", "valid_from", "quantity", "free",
    "refused", "price_micros", "amount_micros",
)  # fmt: skip
_INVOICES: Final = (
    Column("month", "Month"),
    Column("tenant", "Tenant"),
    Column("status", "Status"),
    Column("revision", "Revision", is_number=True),
    Column("requests", "Requests", is_number=True),
    Column("messages", "Messages", is_number=True),
    Column("bytes_in", "In", is_number=True),
    Column("bytes_out", "Out", is_number=True),
    Column("amount", "Amount", is_number=True),
)
_LINES: Final = (
    Column("month", "Month"),
    Column("tenant", "Tenant"),
    Column("item", "Item"),
    Column("quantity", "Quantity", is_number=True),
    Column("free", "Free of it", is_number=True),
    Column("amount", "Amount", is_number=True),
)

Row = Mapping[str, Any]


def collect(lake: Lake, since_ms: int | None, until_ms: int | None) -> tuple[list[Row], list[Row]]:
    """Return the last revision of each invoice and its lines, for the months that overlap the
    requested time. Raises JobMisused."""
    require_table(lake, INVOICE, job="billing")
    last: dict[tuple[str, str], Row] = {}
    for row in read(lake, INVOICE, where=_months(since_ms, until_ms)):
        key = row["month"], row["tenant"]
        if key not in last or last[key]["revision"] < row["revision"]:
            last[key] = row
    heads = sorted(
        last.values(), key=lambda each: (each["month"], -each["amount_micros"], each["tenant"])
    )
    lines: list[Row] = [
        {**row, "status": head["status"], "currency": head["currency"]}
        for row in (
            read(lake, INVOICE_LINE, where=_months(since_ms, until_ms))
            if lake.exists(INVOICE_LINE)
            else ()
        )
        if (head := last.get((row["month"], row["tenant"]))) is not None
        and (row["revision"], row["writing"]) == (head["revision"], head["writing"])
    ]
    lines.sort(key=lambda row: (row["month"], row["tenant"], row["item"], row["valid_from"]))
    return heads, lines


def _months(since_ms: int | None, until_ms: int | None) -> Any:
    import pyarrow.compute as pc

    condition = None
    if since_ms is not None:
        condition = pc.field("month") >= _month(since_ms)
    if until_ms is not None:
        until = pc.field("month") <= _month(until_ms - 1)
        condition = until if condition is None else condition & until
    return condition


def _month(at_ms: int) -> str:
    return datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC).strftime("%Y-%m")


def page(heads: Sequence[Row], lines: Sequence[Row]) -> Page:
    totals = _by_currency(heads)
    months = sorted({head["month"] for head in heads})
    drafts = sum(head["status"] != "final" for head in heads)
    tiles = [
        *(("Amount", numbers.money(total, currency)) for currency, total in totals.items()),
        ("Invoices", numbers.count(len(heads))),
        ("Drafts", numbers.count(drafts)),
        ("Requests", numbers.count(sum(head["requests"] for head in heads))),
        ("Messages", numbers.count(sum(head["messages"] for head in heads))),
    ]
    period = "nothing in this time"
    if months:
        period = months[0] if len(months) == 1 else f"{months[0]} to {months[-1]}"
    sections = []
    for currency in totals:
        own = [head for head in heads if head["currency"] == currency]
        of_own = [line for line in lines if line["currency"] == currency]
        sections.append(Section(f"Amounts in {currency}", _plots(own, of_own, currency)))
    sections.append(Section("Invoices", table=_invoices(heads, totals)))
    sections.append(Section("Lines", table=_lines(lines)))
    notes = ["Byte quantities of storage are byte-minutes. A draft may still change."]
    if any(head["tenant"] in ("", "*") for head in heads):
        notes.append("Use that belongs to no known tenant is listed without a name and not billed.")
    return Page("Billing", period, tiles, sections, notes)


def _by_currency(rows: Iterable[Row]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["currency"]] = totals.get(row["currency"], 0) + row["amount_micros"]
    return dict(sorted(totals.items()))


def _plots(heads: Sequence[Row], lines: Sequence[Row], currency: str) -> list[Plot]:
    def form(value: float) -> str:
        return numbers.money(round(value), currency)

    plots = []
    for title, rows, name in (
        ("By tenant", heads, "tenant"),
        ("By item", lines, "item"),
        ("By month", heads, "month"),
    ):
        ranked: dict[str, float] = {}
        for row in rows:
            if row["amount_micros"]:
                label = row[name] or "(unknown)"
                ranked[label] = ranked.get(label, 0) + row["amount_micros"]
        if len(ranked) > 1 or (ranked and name != "month"):
            plots.append(Plot(title, charts.ranking(ranked, form=form)))
    return plots


def _invoices(heads: Sequence[Row], totals: Mapping[str, int]) -> Table:
    rows = [
        {
            "month": head["month"],
            "tenant": head["tenant"] or "(unknown)",
            "status": head["status"],
            "revision": str(head["revision"]),
            "requests": numbers.count(head["requests"]),
            "messages": numbers.count(head["messages"]),
            "bytes_in": numbers.size(head["bytes_in"]),
            "bytes_out": numbers.size(head["bytes_out"]),
            "amount": numbers.money(head["amount_micros"], head["currency"]),
        }
        for head in heads[:ROWS_MAX]
    ]
    total = " + ".join(numbers.money(amount, currency) for currency, amount in totals.items())
    sums = {
        "month": "Total",
        **{name: numbers.count(sum(h[name] for h in heads)) for name in ("requests", "messages")},
        **{name: numbers.size(sum(h[name] for h in heads)) for name in ("bytes_in", "bytes_out")},
        "amount": total,
    }
    return Table(_INVOICES, rows, sums, left_out=max(0, len(heads) - ROWS_MAX))


def _lines(lines: Sequence[Row]) -> Table:
    rows = [
        {
            "month": line["month"],
            "tenant": line["tenant"],
            "item": line["item"],
            "quantity": numbers.count(line["quantity"]),
            "free": numbers.count(line["free"]),
            "amount": numbers.money(line["amount_micros"], line["currency"]),
        }
        for line in lines[:ROWS_MAX]
    ]
    total = " + ".join(numbers.money(amount, cur) for cur, amount in _by_currency(lines).items())
    return Table(
        _LINES,
        rows,
        {"month": "Total", "amount": total},
        left_out=max(0, len(lines) - ROWS_MAX),
    )


def run(context: JobContext) -> None:
    heads, lines = collect(context.lake, context.since_ms, context.until_ms)
    write(context, "billing", page(heads, lines), lines, CSV_COLUMNS)


JOB: Final = Job(
    name="billing",
    summary="What each tenant owes and for what, on one page.",
    run=run,
    options=options(),
    modes=frozenset((Mode.ONCE,)),
    needs_spark=False,
)
