"""The result of one check of ``penstock doctor``."""

from typing import Literal, NamedTuple

Status = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    check: str
    status: Status
    detail: str
    fix: str = ""
