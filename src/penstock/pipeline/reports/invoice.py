"""Report ``invoice``: a document for each tenant and month, to send to the customer.

A document has the lines of one tenant only. The amounts are those of the report ``billing``: the
last revision counts, and drafts are marked."""

import calendar
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from penstock.pipeline.facts.rates import MINUTES_PER_DAY
from penstock.pipeline.job import Job, JobContext, JobMisused, NotFound
from penstock.pipeline.jobs.billing import UNBILLED
from penstock.pipeline.reports import billing, numbers
from penstock.pipeline.reports.output import OUT, report, write_pages
from penstock.pipeline.reports.page import Column, Page, Section, Table, number

_LINES: Final = (
    Column("item", "Item"),
    number("quantity", "Quantity"),
    number("free", "Free"),
    number("billed", "Billed"),
    number("price", "Price"),
    number("amount", "Amount"),
)

Row = Mapping[str, Any]


def page(invoice: Row, lines: Sequence[Row], *, seller: str, customer: str, note: str) -> Page:
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
        sections=[Section("Lines", table=_table(lines, total, currency, days=days), note=note)],
        notes=notes,
    )


def _table(lines: Sequence[Row], total: str, currency: str, *, days: int) -> Table:
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
    return Table(_LINES, rows, {"item": "Total", "amount": total})


def _kind(item: str, *, days: int) -> tuple[str, Callable[[float], str], str]:
    """Return the name of a line, the format of its quantity, and the unit of its price."""
    if item == "storage":  # counted in byte-minutes, priced by the month

        def average(byte_minutes: float) -> str:
            return numbers.size(byte_minutes / (days * MINUTES_PER_DAY))

        return "Storage, average of the month", average, "10⁹ bytes"
    if item == "bytes_out":
        return "Data out", numbers.size, "10⁹ bytes"
    return f"Requests: {item.removeprefix('requests:')}", numbers.count, "million"


def run(context: JobContext) -> None:
    tenant, month = (context.arguments.get(name) for name in ("tenant", "month"))
    invoices, lines = billing.collect(context.lake, context.since_ms, context.until_ms)
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
        raise JobMisused("--customer is the name of one tenant: give its --tenant")
    given = context.arguments
    words = {name: str(given.get(name) or "") for name in ("seller", "customer", "note")}
    pages = {}
    for invoice in wanted:
        own = [
            line
            for line in lines
            if (line["month"], line["tenant"]) == (invoice["month"], invoice["tenant"])
        ]
        pages[f"invoice-{invoice['month']}-{invoice['tenant']}"] = page(invoice, own, **words)
    write_pages(context, pages)


JOB: Final[Job] = report(
    "invoice",
    "Write an invoice document for each tenant and month.",
    run,
    (
        OUT,
        click.Option(["--tenant"], metavar="ID", help="tenant of the invoices [default: all]"),
        click.Option(["--month"], metavar="YYYY-MM", help="month of the invoices [default: all]"),
        click.Option(["--seller"], metavar="TEXT", help="name and address of the sender"),
        click.Option(["--customer"], metavar="TEXT", help="customer name [default: tenant id]"),
        click.Option(["--note"], metavar="TEXT", help="text above the table, such as tax"),
    ),
)
