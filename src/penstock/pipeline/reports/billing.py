"""Reports from the invoices of the job ``billing``: ``billing``, the amounts that tenants owe, and
``invoice``, a document for each tenant and month to send to the customer.

Only the last revision of an invoice counts; earlier revisions stay in the lake. Drafts are marked.
Amounts are summed as whole millionths, so a total is exactly the sum of its rows."""

import calendar
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.pipeline.facts.rates import MINUTES_PER_DAY
from penstock.pipeline.job import (
    Job,
    JobContext,
    JobMisused,
    NotFound,
    option,
    require_table,
    utc,
)
from penstock.pipeline.jobs.billing import INVOICE, INVOICE_LINE, UNBILLED
from penstock.pipeline.lake import Lake
from penstock.pipeline.reports import charts, numbers
from penstock.pipeline.reports.output import OUT, report, write, write_pages
from penstock.pipeline.reports.page import Column, Page, Plot, Section, Table, number
from penstock.pipeline.reports.rows import both, by_column, ranked_by
from penstock.pipeline.reports.rows import rows as read

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
_DOCUMENT: Final = (
    Column("item", "Item"),
    number("quantity", "Quantity"),
    number("free", "Free"),
    number("billed", "Billed"),
    number("price", "Price"),
    number("amount", "Amount"),
)

Row = Mapping[str, Any]


def collect(lake: Lake, since_ms: int | None, until_ms: int | None) -> tuple[list[Row], list[Row]]:
    """Return the last revision of each invoice, and its lines."""
    require_table(lake, INVOICE, job="billing")
    last: dict[tuple[str, str], Row] = {}
    for row in read(lake, INVOICE, where=_months(since_ms, until_ms)):
        key = row["month"], row["tenant"]
        if key not in last or last[key]["revision"] < row["revision"]:
            last[key] = row
    invoices = sorted(
        last.values(), key=lambda each: (each["month"], -each["amount_micros"], each["tenant"])
    )
    has_lines = lake.exists(INVOICE_LINE)
    where = _months(since_ms, until_ms)
    lines: list[Row] = [
        {**row, "status": invoice["status"], "currency": invoice["currency"]}
        for row in (read(lake, INVOICE_LINE, where=where) if has_lines else ())
        if (invoice := last.get((row["month"], row["tenant"]))) is not None
        and (row["revision"], row["writing"]) == (invoice["revision"], invoice["writing"])
    ]
    lines.sort(key=lambda row: (row["month"], row["tenant"], row["item"], row["valid_from"]))
    return invoices, lines


def _months(since_ms: int | None, until_ms: int | None) -> Any:
    import pyarrow.compute as pc

    month = pc.field("month")
    since = None if since_ms is None else month >= f"{utc(since_ms):%Y-%m}"
    until = None if until_ms is None else month <= f"{utc(until_ms - 1):%Y-%m}"
    return both(since, until)


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
    period = "no data in this time range"
    if months:
        period = months[0] if len(months) == 1 else f"{months[0]} to {months[-1]}"
    sections = []
    for currency in totals:
        own = [invoice for invoice in invoices if invoice["currency"] == currency]
        of_own = [line for line in lines if line["currency"] == currency]
        sections.append(Section(f"Amounts in {currency}", _plots(own, of_own, currency)))
    sections.append(Section("Invoices", table=_invoices(invoices, totals)))
    line_totals = {"month": "Total", "amount": _total(_by_currency(lines))}
    line_table = Table(_LINES, [_with_amount(line) for line in lines], line_totals)
    sections.append(Section("Lines", table=line_table))
    notes = ["Byte quantities of storage are byte-minutes. A draft may still change."]
    if any(invoice["tenant"] in UNBILLED for invoice in invoices):
        notes.append("Usage of unknown tenants is listed without a name and not billed.")
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


def run(context: JobContext) -> None:
    invoices, lines = collect(context.lake, context.since_ms, context.until_ms)
    write(context, "billing", page(invoices, lines), lines, CSV_COLUMNS)


def document(invoice: Row, lines: Sequence[Row], *, seller: str, customer: str, note: str) -> Page:
    month, currency = invoice["month"], invoice["currency"]
    days = calendar.monthrange(*map(int, month.split("-")))[1]
    total = numbers.money(invoice["amount_micros"], currency)
    is_final = invoice["status"] == "final"
    invoice_id = f"{month}-{invoice['tenant']}-{invoice['revision']}"
    about = [("Invoice", invoice_id), ("Customer", customer or invoice["tenant"])]
    if seller:
        about.append(("From", seller))
    about += [("Period", f"{month}-01 to {month}-{days}"), ("Total", total)]
    notes = [] if is_final else ["This is a draft: the month is not over, and amounts may change."]
    return Page(
        title="Invoice" if is_final else "Draft invoice",
        period=f"{month}, {customer or invoice['tenant']}",
        tiles=about,
        sections=[Section("Lines", table=_priced(lines, total, currency, days=days), note=note)],
        notes=notes,
    )


def _priced(lines: Sequence[Row], total: str, currency: str, *, days: int) -> Table:
    rows = []
    for line in lines:
        item, form, unit = _kind(line["item"], days=days)
        used = line["quantity"] - line["refused"]
        rows.append(
            {
                "item": item,
                "quantity": form(used),
                "free": form(line["free"]),
                "billed": form(used - line["free"]),
                "price": f"{numbers.money(line['price_micros'], currency)} / {unit}",
                "amount": numbers.money(line["amount_micros"], currency),
            }
        )
    return Table(_DOCUMENT, rows, {"item": "Total", "amount": total})


def _kind(item: str, *, days: int) -> tuple[str, Callable[[float], str], str]:
    """Return the name of an invoice line, the format of its quantity, and the unit of its price."""
    if item == "storage":  # counted in byte-minutes, priced by the month

        def average(byte_minutes: float) -> str:
            return numbers.size(byte_minutes / (days * MINUTES_PER_DAY))

        return "Storage, average of the month", average, "10⁹ bytes"
    if item == "bytes_out":
        return "Data out", numbers.size, "10⁹ bytes"
    return f"Requests: {item.removeprefix('requests:')}", numbers.count, "million"


def run_invoice(context: JobContext) -> None:
    tenant, month = (context.arguments.get(name) for name in ("tenant", "month"))
    invoices, lines = collect(context.lake, context.since_ms, context.until_ms)
    wanted = [
        invoice
        for invoice in invoices
        if invoice["tenant"] not in UNBILLED
        and tenant in (None, invoice["tenant"])
        and month in (None, invoice["month"])
    ]
    if not wanted:
        whose = f" of tenant {tenant}" if tenant else ""
        raise NotFound(
            f"the lake {context.lake.path} has no invoice{whose}{f' for {month}' if month else ''}",
            "penstock pipeline run billing --rates FILE",
        )
    if context.arguments.get("customer") and len({invoice["tenant"] for invoice in wanted}) > 1:
        raise JobMisused("--customer needs --tenant: several tenants have invoices")
    given = context.arguments
    words = {name: str(given.get(name) or "") for name in ("seller", "customer", "note")}
    pages = {}
    for invoice in wanted:
        own = [
            line
            for line in lines
            if (line["month"], line["tenant"]) == (invoice["month"], invoice["tenant"])
        ]
        pages[f"invoice-{invoice['month']}-{invoice['tenant']}"] = document(invoice, own, **words)
    write_pages(context, pages)


JOB: Final[Job] = report("billing", "Write a page with the charges of each tenant.", run)
INVOICES: Final[Job] = report(
    "invoice",
    "Write an invoice document for each tenant and month.",
    run_invoice,
    (
        OUT,
        option("--tenant", "ID", "tenant of the invoices [default: all]"),
        option("--month", "YYYY-MM", "month of the invoices [default: all]"),
        option("--seller", "TEXT", "name and address of the seller"),
        option("--customer", "TEXT", "customer name [default: tenant id]"),
        option("--note", "TEXT", "text above the invoice lines, such as a tax note"),
    ),
)
