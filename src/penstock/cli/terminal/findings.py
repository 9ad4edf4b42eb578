"""The result of one check of a doctor, as a row of its table."""

from importlib import metadata
from typing import Literal, NamedTuple

from penstock.cli.terminal.output import Column, columns

Status = Literal["ok", "warn", "fail"]

_MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
COLUMNS = (
    Column("status", " ", form=_MARKS.__getitem__),
    *columns("check, detail FINDING, fix DO"),
)


class Finding(NamedTuple):
    check: str
    status: Status
    detail: str
    fix: str = ""


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
