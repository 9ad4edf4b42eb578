"""Folders of the pipeline, and checks that several of its commands share.

The lake is a separate folder, never inside a server's data folder: it outlives servers, and may be
on other disks. Checkpoints are in the lake by default, so that a lake that is moved keeps its
progress."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from penstock.cli.terminal.failure import Failure, Misuse

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
        help=f"folder of the lake [env PENSTOCK_LAKE, default ./{LAKE_DEFAULT}]",
    )


def checkpoint_option() -> click.Option:
    return click.Option(
        ["--checkpoint"],
        metavar="DIR",
        envvar="PENSTOCK_CHECKPOINT",
        help="folder of offsets, status and logs [default: in the lake]",
    )


def folder_of(text: str, *, option: str) -> Path:
    if "://" in text:
        raise Misuse(
            f"cannot use {option} '{text}'",
            "it is a URL, and the pipeline writes to folders only",
            'mount the object store as a folder; see docs/pipeline.md, "Object stores"',
        )
    return Path(text).expanduser().absolute()


def checkpoints_of(lake: str, checkpoint: str | None) -> Path:
    if checkpoint is not None:
        return folder_of(checkpoint, option="--checkpoint")
    return folder_of(lake, option="--lake") / _CHECKPOINTS


def writable_above(folder: Path) -> Path | None:
    """Return the folder, or the nearest one above it that exists; None if it is not writable."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else None


def require_writable(folder: Path, *, option: str) -> None:
    if writable_above(folder) is None:
        why = "it is a file" if folder.is_file() else "it is not writable"
        raise Misuse(f"cannot use folder {folder}", why, f"choose another folder with {option} DIR")
