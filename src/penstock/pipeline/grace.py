"""The option ``--grace``: for how long a span of time stays open behind its end, because what
belongs to it may come late. One for all jobs that close spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext

_NAME: Final = "grace_s"
_SECONDS_MAX: Final = 86_400


def grace_option(span: str, default_ms: int) -> click.Option:
    """``span`` is what stays open, as in "an hour"."""
    return click.Option(
        ["--grace", _NAME],
        type=click.IntRange(0, _SECONDS_MAX),
        default=default_ms // 1_000,
        show_default=True,
        metavar="SECONDS",
        help=f"how long {span} stays open after its end",
    )


def grace_ms_of(context: JobContext, default_ms: int) -> int:
    """What was asked for; a job that is not started by the command has no options."""
    seconds = context.arguments.get(_NAME)
    return default_ms if seconds is None else int(seconds) * 1_000
