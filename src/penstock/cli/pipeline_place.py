"""Where the pipeline keeps things, and whether it is there at all: what several verbs share.

The lake is a folder of its own, never inside a server's data folder: it outlives servers, and may
be on other disks. Checkpoints are in the lake unless said otherwise, so that a lake that is moved
takes along how far it has come.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from penstock.cli.failure import Failure

LAKE_DEFAULT = "penstock-lake"
_CHECKPOINTS = "_checkpoints"
_NEEDED = ("pyspark", "pyarrow", "deltalake", "numpy")


def require_extra() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Failure("the pipeline needs: pip install 'penstock[spark]'")


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (checkpoint_option(), lake_option()):
        command.__dict__.setdefault("__click_params__", []).append(option)
    return command


def lake_option() -> click.Option:
    return click.Option(
        ["--lake"],
        metavar="DIR",
        envvar="PENSTOCK_LAKE",
        default=LAKE_DEFAULT,
        help=f"folder of the tables [env PENSTOCK_LAKE, default ./{LAKE_DEFAULT}]",
    )


def checkpoint_option() -> click.Option:
    return click.Option(
        ["--checkpoint"],
        metavar="DIR",
        envvar="PENSTOCK_CHECKPOINT",
        help="folder of offsets, status and logs [default: in the lake]",
    )


def checkpoints_of(lake: str, checkpoint: str | None) -> Path:
    chosen = Path(checkpoint) if checkpoint is not None else Path(lake) / _CHECKPOINTS
    return chosen.expanduser().absolute()
