"""Commands of ``penstock backup``. ``create`` reads from a running server or cluster and writes to
the disk of this machine; the other commands read backups on disk and need no server.
``backup/manifest.py`` describes the format of a backup, ``node/restoring.py`` does the restore."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.command import Noun, Session
from penstock.cli.terminal.failure import Conflict, ExitCode, Misuse
from penstock.cli.terminal.options import bytes_of, option
from penstock.cli.terminal.output import columns, moment, progress_bar

if TYPE_CHECKING:
    from penstock.backup.manifest import Manifest

_dir_argument = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_COLUMNS = columns(
    "name, at_ms AT, version, nodes, partitions#, definitions#, size_bytes# SIZE,"
    " master_key_id MASTER KEY",
    at_ms=moment,
    nodes=lambda nodes: ",".join(map(str, nodes)) or "-",
)
_FINDING_COLUMNS = columns("backup, file, reason WHY")
backup = Noun("backup", help="Create, list, verify and restore backups of a server or cluster.")


@backup.command()
@option(
    "--to folder",
    click.Path(file_okay=False, path_type=Path),
    "folder of backups; the backup is written to a new subfolder",
    metavar="DIR",
    required=True,
)
@option("--rate", bytes_of(1, 100 * 2**30), "maximum bytes read per second", metavar="SIZE")
def create(session: Session, folder: Path, rate: int | None) -> None:
    """Back up queues, topics, users, keys and messages of a running server or cluster.

    The server continues to serve clients. The backup has every message that was acknowledged before
    the backup began. Secrets stay encrypted. Keep the master key elsewhere: a restore needs it."""
    from penstock.backup.writing import Pace, write_backup
    from penstock.cli.data.backup_source import AdminSource
    from penstock.node.process.folder import set_umask

    set_umask()
    with progress_bar("copying", is_quiet=session.settings.quiet) as update:
        made, manifest = write_backup(
            AdminSource(session.admin),
            folder,
            pace=Pace(rate or 0),
            now_ms=lambda: time.time_ns() // 1_000_000,
            progress=update,
        )
    session.out.one(_row(made, manifest), columns=_COLUMNS)


@backup.command("list")
@_dir_argument
def list_backups(session: Session, folder: Path) -> None:
    """List the backups in a folder, oldest first."""
    from penstock.backup.manifest import BackupUnusable, backups_in, partials_in, read_manifest

    rows = []
    for one in backups_in(folder):
        try:
            rows.append(_row(one, read_manifest(one)))
        except BackupUnusable as error:
            session.remark(f"{one.name} cannot be used: {error}")
    for partial in partials_in(folder):
        session.remark(f"{partial.name} is incomplete: remove it unless it is being written")
    session.out.many(rows, columns=_COLUMNS, empty=f"no backups in {folder}")


@backup.command()
@_dir_argument
def verify(session: Session, folder: Path) -> None:
    """Read every byte of a backup, or of all backups in a folder, and compare checksums.

    Exit code 8 if a file is missing, changed or unexpected."""
    from penstock.backup.manifest import verify as verify_one

    chosen = _several(folder) or [folder]
    findings = []
    with progress_bar("reading", is_quiet=session.settings.quiet) as update:
        for one in chosen:
            findings += [
                {"backup": one.name, "file": found.file, "reason": found.reason}
                for found in verify_one(one, progress=update)
            ]
    if findings:
        session.out.many(findings, columns=_FINDING_COLUMNS, name="file")
        session.remark(f"{len(findings)} problems found in {len(chosen)} backups.")
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)
    session.remark(f"{len(chosen)} backups verified, no problems found.")


@backup.command()
@_dir_argument
@click.option("--data", metavar="DIR", required=True, help="empty data folder of the new server")
@click.option("--node", type=click.IntRange(1), help="id of this node in the new cluster")
@click.option("--etcd", metavar="HOST:PORT[,...]", help="addresses of the new cluster's etcd")
@click.option("--config", "config_file", metavar="FILE", help="TOML configuration of the server")
@click.option("--push", is_flag=True, help="leave subscriptions as they were [default: paused]")
def restore(
    session: Session,
    folder: Path,
    data: str,
    node: int | None,
    etcd: str | None,
    config_file: str | None,
    push: bool,
) -> None:
    """Restore a backup into a new data folder. Then start a server with this folder.

    With --node and --etcd the folder is for one node of a new cluster: start this node first, then
    the other nodes, which copy the data from it.

    The copy calls no endpoint of webhooks and SNS subscriptions until you resume them with
    `penstock subscription resume`. Use --push only if the original is gone."""
    from penstock.backup.manifest import read_manifest
    from penstock.node.configuration import config as node_config
    from penstock.node.configuration.settings import ConfigInvalid
    from penstock.node.process.folder import FolderUnusable, set_umask
    from penstock.node.restoring import restore as restore_all

    set_umask()
    given = {"node.data": data, "cluster.node": node, "cluster.etcd": etcd}
    flags = {key: value for key, value in given.items() if value is not None}
    if node is not None:
        flags["internal.listen"] = "127.0.0.1:0"  # required of a node, but not used by a restore
    what = f"did not restore '{folder}'"
    try:
        files = node_config.config_files(Path(config_file) if config_file else None)
        config = node_config.load(flags, os.environ, files).config
    except ConfigInvalid as error:
        raise Misuse(what, str(error)) from error
    if backups := _several(folder):
        raise Misuse(
            f"'{folder}' is not a backup",
            f"the folder has {len(backups)} backups, the newest is {backups[-1].name}",
            f"give one of them, such as {folder / backups[-1].name}",
        )
    manifest = read_manifest(folder)
    with progress_bar("restoring", is_quiet=session.settings.quiet) as update:
        try:
            paused_count = restore_all(
                folder,
                manifest,
                config,
                is_pushing=push,
                now_ms=time.time_ns() // 1_000_000,
                progress=update,
            )
        except FolderUnusable as error:
            raise Conflict(what, str(error), "choose another --data DIR") from error
    session.out.one({**_row(folder, manifest), "data": data}, columns=_COLUMNS)
    session.remark(
        f"Start the server with the master key {manifest.master_key_id}: in {data}/master.key,"
        " keys.master_file or PENSTOCK_MASTER_KEY."
    )
    if paused_count:
        session.remark(
            f"{paused_count:,} subscriptions are paused, so that the copy calls no endpoint: resume"
            " them with `penstock subscription resume`."
        )


def _several(folder: Path) -> list[Path]:
    from penstock.backup.manifest import MANIFEST_NAME, backups_in

    is_one = not folder.is_dir() or (folder / MANIFEST_NAME).exists()
    return [] if is_one else backups_in(folder)


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
