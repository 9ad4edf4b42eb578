"""``penstock backup``: creates, lists, verifies and restores backups.

``create`` reads from a running server or cluster and writes to the disk of this machine; the other
commands read backups on disk and need no server. ``node/backup_manifest.py`` describes the format
of a backup, ``node/restoring.py`` does the restore."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, moment
from penstock.cli.progress import Progress
from penstock.cli.quantity import bytes_of
from penstock.cli.session import Noun, Session, pass_session
from penstock.model.units import size

if TYPE_CHECKING:
    from penstock.node.backup_manifest import Manifest

_RATE = bytes_of(1, 100 * 2**30)

_COLUMNS = (
    Column("name", "NAME"),
    Column("at_ms", "AT", form=moment),
    Column("version", "VERSION"),
    Column("nodes", "NODES", form=lambda nodes: ",".join(map(str, nodes)) or "-"),
    Column("partitions", "PARTITIONS", is_number=True),
    Column("definitions", "DEFINITIONS", is_number=True),
    Column("size_bytes", "SIZE", is_number=True, form=size),
    Column("master_key_id", "MASTER KEY"),
)
_FINDING_COLUMNS = (
    Column("backup", "BACKUP"),
    Column("file", "FILE"),
    Column("reason", "WHY"),
)


@click.group(cls=Noun)
def backup() -> None:
    """Copy everything a server has, check such copies, and start anew from one."""


@backup.command()
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="where backups are kept; the new one gets a name of its own in there",
)
@click.option("--rate", metavar="SIZE", type=_RATE, help="at most so much a second, such as 50MB")
@pass_session
def create(session: Session, folder: Path, rate: int | None) -> None:
    """Copy queues, topics, users, keys and messages of a running server or cluster.

    Nothing stops meanwhile. Everything that was answered before it began is in it. Secrets stay
    sealed: keep the master key somewhere else, without it a backup cannot be used.
    """
    from penstock.cli.backup_source import AdminSource
    from penstock.node.backup_writing import Pace, write_backup
    from penstock.node.private import set_umask

    set_umask()
    quiet = session.settings.quiet
    with Progress("copying", is_quiet=quiet) as progress:
        made, manifest = write_backup(
            AdminSource(session.admin),
            folder,
            pace=Pace(rate or 0),
            now_ms=lambda: time.time_ns() // 1_000_000,
            told=lambda done, total: progress.update(done, total=total),
        )
    session.out.one(_row(made, manifest), columns=_COLUMNS)


@backup.command("list")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@pass_session
def list_backups(session: Session, folder: Path) -> None:
    """List the backups in a folder, oldest first."""
    from penstock.node.backup_files import backups_in, partials_in, read_manifest
    from penstock.node.backup_manifest import BackupUnusable

    rows = []
    for one in backups_in(folder):
        try:
            rows.append(_row(one, read_manifest(one)))
        except BackupUnusable as error:
            session.remark(f"{one.name} cannot be used: {error}")
    for partial in partials_in(folder):
        session.remark(f"{partial.name} was never finished: remove it unless it is being written")
    session.out.many(rows, columns=_COLUMNS, empty=f"no backups in {folder}")


@backup.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@pass_session
def verify(session: Session, folder: Path) -> None:
    """Read every byte of a backup, or of all backups in a folder, and compare it.

    Exit code 8 when anything is missing, changed or out of place.
    """
    from penstock.node.backup_files import backups_in
    from penstock.node.backup_files import verify as verify_one
    from penstock.node.backup_manifest import MANIFEST_NAME

    chosen = [folder]
    if folder.is_dir() and not (folder / MANIFEST_NAME).exists():
        chosen = backups_in(folder) or chosen
    findings = []
    with Progress("reading", is_quiet=session.settings.quiet) as progress:
        for one in chosen:
            findings += [
                {"backup": one.name, "file": found.file, "reason": found.reason}
                for found in verify_one(one, told=progress.update)
            ]
    if findings:
        session.out.many(findings, columns=_FINDING_COLUMNS, name="file")
        session.remark(f"{len(findings)} found in {len(chosen)} backups.")
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)
    session.remark(f"{len(chosen)} verified, nothing found.")


@backup.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--data", metavar="DIR", required=True, help="an empty folder, for the new server")
@click.option("--node", type=click.IntRange(1), help="of a fresh cluster: the node that gets it")
@click.option("--etcd", metavar="HOST:PORT[,...]", help="of a fresh cluster: its etcd")
@click.option("--config", "config_file", metavar="FILE", help="settings in TOML, as for serve")
@pass_session
def restore(
    session: Session,
    folder: Path,
    data: str,
    node: int | None,
    etcd: str | None,
    config_file: str | None,
) -> None:
    """Make a data folder of a backup; then start a server on it.

    With --node and --etcd the folder is that of one node of a fresh cluster: start it first, then
    the others, which get their copies from it.
    """
    from penstock.node import config as node_config
    from penstock.node.backup_files import read_manifest
    from penstock.node.folder import FolderUnusable
    from penstock.node.private import set_umask
    from penstock.node.restoring import restore as restore_all
    from penstock.node.settings import ConfigInvalid

    set_umask()
    given = {"node.data": data, "cluster.node": node, "cluster.etcd": etcd}
    flags = {key: value for key, value in given.items() if value is not None}
    if node is not None:
        flags["internal.listen"] = "127.0.0.1:0"  # a node must have it; a restore does not use it
    what = f"did not restore '{folder}'"
    try:
        files = node_config.config_files(Path(config_file) if config_file else None)
        config = node_config.load(flags, os.environ, files).config
    except ConfigInvalid as error:
        raise Failure(what, str(error), exit_code=ExitCode.USAGE) from error
    manifest = read_manifest(_one(folder))
    with Progress("restoring", is_quiet=session.settings.quiet) as progress:
        try:
            restore_all(
                folder,
                manifest,
                config,
                now_ms=time.time_ns() // 1_000_000,
                told=lambda done, total: progress.update(done, total=total),
            )
        except FolderUnusable as error:
            raise Failure(
                what, str(error), "give another folder with --data", exit_code=ExitCode.CONFLICT
            ) from error
    session.out.one({**_row(folder, manifest), "data": data}, columns=_COLUMNS)
    session.remark(
        f"Start it with the master key {manifest.master_key_id}: as {data}/master.key, or by"
        " keys.master_file or PENSTOCK_MASTER_KEY."
    )


def _one(folder: Path) -> Path:
    """Return the folder if it is a backup. Raises Failure if it contains several backups."""
    from penstock.node.backup_files import backups_in
    from penstock.node.backup_manifest import MANIFEST_NAME

    if folder.is_dir() and not (folder / MANIFEST_NAME).exists():
        names = [one.name for one in backups_in(folder)]
        if names:
            raise Failure(
                f"'{folder}' is not a backup",
                f"it has {len(names)} of them, the newest is {names[-1]}",
                f"name one: {folder / names[-1]}",
                exit_code=ExitCode.USAGE,
            )
    return folder


def _row(place: Path, manifest: "Manifest") -> dict[str, Any]:
    return {
        "name": place.name,
        "path": str(place),
        "at_ms": manifest.at_ms,
        "finished_at_ms": manifest.finished_at_ms,
        "version": manifest.version,
        "node": manifest.node,
        "nodes": list(manifest.nodes),
        "partitions": len(manifest.partitions),
        "definitions": manifest.definition_count,
        "size_bytes": manifest.size_bytes,
        "master_key_id": manifest.master_key_id,
    }
