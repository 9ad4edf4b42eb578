"""Report ``billing``: the amounts that tenants owe, from the invoices of the job ``billing``.

Only the last revision of a tenant's month counts; earlier ones stay in the lake. Amounts are summed
as whole millionths, so the total of a table is exactly the sum of its rows."""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.pipeline.job import Job, JobContext, require_table
from penstock.pipeline.jobs.billing import INVOICE, INVOICE_LINE, UNBILLED
from penstock.pipeline.lake import Lake
from penstock.pipeline.reports import charts, numbers
from penstock.pipeline.reports.output import report, write
from penstock.pipeline.reports.page import Column, Page, Plot, Section, Table, number
from penstock.pipeline.reports.rows import both
from penstock.pipeline.reports.rows import rows as read
from penstock.pipeline.reports.series import by_column, ranked_by

CSV_COLUMNS: Final = (
    "month", "tenant", "status", "revision", "currency", "item", "valid_from", "quantity", "free",
    "refused", "price_micros", "amount_micros",
)  # fmt: skip
_INVOICES: Final = (
    Column("month", "Month"),
    Column("tenant", "Tenant"),
    Column("status", "Status"),
    number("revision", "Revision"),
    number("requests", "Requests", numbers.count),
    number("messages", "Messages", numbers.count),
    number("bytes_in", "In", numbers.size),
    number("bytes_out", "Out", numbers.size),
    number("amount", "Amount"),
)
_LINES: Final = (
    Column("month", "Month"),
    Column("tenant", "Tenant"),
    Column("item", "Item"),
    number("quantity", "Quantity", numbers.count),
    number("free", "Free of it", numbers.count),
    number("amount", "Amount"),
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
    invoices = sorted(
        last.values(), key=lambda each: (each["month"], -each["amount_micros"], each["tenant"])
    )
    lines: list[Row] = [
        {**row, "status": invoice["status"], "currency": invoice["currency"]}
        for row in (
            read(lake, INVOICE_LINE, where=_months(since_ms, until_ms))
            if lake.exists(INVOICE_LINE)
            else ()
        )
        if (invoice := last.get((row["month"], row["tenant"]))) is not None
        and (row["revision"], row["writing"]) == (invoice["revision"], invoice["writing"])
    ]
    lines.sort(key=lambda row: (row["month"], row["tenant"], row["item"], row["valid_from"]))
    return invoices, lines


def _months(since_ms: int | None, until_ms: int | None) -> Any:
    import pyarrow.compute as pc

    since = None if since_ms is None else pc.field("month") >= _month(since_ms)
    until = None if until_ms is None else pc.field("month") <= _month(until_ms - 1)
    return both(since, until)


def _month(at_ms: int) -> str:
    return datetime.datetime.fromtimestamp(at_ms / 1_000, datetime.UTC).strftime("%Y-%m")


def page(invoices: Sequence[Row], lines: Sequence[Row]) -> Page:
    totals = _by_currency(invoices)
    months = sorted({invoice["month"] for invoice in invoices})
    drafts = sum(invoice["status"] != "final" for invoice in invoices)
    tiles = [
        *(("Amount", numbers.money(total, currency)) for currency, total in totals.items()),
        ("Invoices", numbers.count(len(invoices))),
        ("Drafts", numbers.count(drafts)),
        ("Requests", numbers.count(sum(invoice["requests"] for invoice in invoices))),
        ("Messages", numbers.count(sum(invoice["messages"] for invoice in invoices))),
    ]
    period = "nothing in this time"
    if months:
        period = months[0] if len(months) == 1 else f"{months[0]} to {months[-1]}"
    sections = []
    for currency in totals:
        own = [invoice for invoice in invoices if invoice["currency"] == currency]
        of_own = [line for line in lines if line["currency"] == currency]
        sections.append(Section(f"Amounts in {currency}", _plots(own, of_own, currency)))
    sections.append(Section("Invoices", table=_invoices(invoices, totals)))
    sections.append(Section("Lines", table=_lines(lines)))
    notes = ["Byte quantities of storage are byte-minutes. A draft may still change."]
    if any(invoice["tenant"] in UNBILLED for invoice in invoices):
        notes.append("Use that belongs to no known tenant is listed without a name and not billed.")
    return Page("Billing", period, tiles, sections, notes)


def _by_currency(rows: Iterable[Row]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["currency"]] += row["amount_micros"]
    return dict(sorted(totals.items()))


def _plots(invoices: Sequence[Row], lines: Sequence[Row], currency: str) -> list[Plot]:
    def form(value: float) -> str:
        return numbers.money(round(value), currency)

    plots = []
    for title, rows, name in (
        ("By tenant", invoices, "tenant"),
        ("By item", lines, "item"),
        ("By month", invoices, "month"),
    ):
        ranked = ranked_by(rows, by_column(name), "amount_micros")
        if len(ranked) > 1 or (ranked and name != "month"):
            plots.append(Plot(title, charts.ranking(ranked, form=form)))
    return plots


def _invoices(invoices: Sequence[Row], totals: Mapping[str, int]) -> Table:
    rows = [
        {**_with_amount(invoice), "tenant": invoice["tenant"] or "(unknown)"}
        for invoice in invoices
    ]
    summed = ("requests", "messages", "bytes_in", "bytes_out")
    sums = {name: sum(invoice[name] for invoice in invoices) for name in summed}
    return Table(_INVOICES, rows, {"month": "Total", **sums, "amount": _total(totals)})


def _with_amount(row: Row) -> Row:
    return {**row, "amount": numbers.money(row["amount_micros"], row["currency"])}


def _total(totals: Mapping[str, int]) -> str:
    return " + ".join(numbers.money(amount, currency) for currency, amount in totals.items())


def _lines(lines: Sequence[Row]) -> Table:
    totals = {"month": "Total", "amount": _total(_by_currency(lines))}
    return Table(_LINES, [_with_amount(line) for line in lines], totals)


def run(context: JobContext) -> None:
    invoices, lines = collect(context.lake, context.since_ms, context.until_ms)
    write(context, "billing", page(invoices, lines), lines, CSV_COLUMNS)


JOB: Final[Job] = report("billing", "Write a page with the charges of each tenant.", run)
