"""What one check of the doctor's has found."""

from typing import Literal, NamedTuple

Status = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    check: str
    status: Status
    detail: str
    fix: str = ""
