"""Plans the processes of ``penstock serve --workers``: checks the data folder, and determines the
settings of each process and the delay before a restart. Each worker is a node of a cluster on this
machine, in which every partition has one replica.

    DATA/workers.json     number of workers
    DATA/master.key       the shared master key, unless one is configured
    DATA/metadata/        data of the metadata process: topics, users, keys, placement
    DATA/worker-1/ ...    data of the workers: logs"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.broker.partition.partitions import TOPICS_FOLDER
from penstock.node.configuration import cluster_config
from penstock.node.configuration.config import KAFKA_OFF, WORKERS_MAX, Config
from penstock.node.configuration.settings import DEFAULT, ENV_PREFIX, ENV_SEPARATOR, Loaded
from penstock.node.process.folder import (
    IDENTITY_NAME,
    METADATA_NAME,
    FolderUnusable,
    replace_file,
    unusable,
)

MARKER_NAME: Final = "workers.json"
LOOPBACK: Final = "127.0.0.1"
METADATA: Final = "metadata"
PARTITIONS: Final = "queue.partitions"

PAUSE_MS_MIN: Final = 200
PAUSE_MS_MAX: Final = 30_000
STEADY_MS: Final = 60_000  # after this time the delay is reset

# Settings that are passed as flags, to be visible in a list of processes.
_FLAGS: Final = {
    "node.data": "data",
    "node.roles": "role",
    "cluster.node": "node",
    "http.listen": "http",
    "kafka.listen": "kafka",
    "admin.listen": "admin",
    "internal.listen": "internal",
    "metadata.service": "metadata",
}


class Marker(msgspec.Struct, frozen=True):
    workers: int


class Addresses(NamedTuple):
    http: str
    kafka: Sequence[str]  # by worker, "off" for each or an address
    admin: Sequence[str]  # by worker
    internal: Sequence[str]  # by worker
    metadata: str
    metadata_admin: str


def read_marker(folder: Path) -> int:
    """Return the number of workers that use a data folder, or 0 if a single process uses it."""
    file = folder / MARKER_NAME
    try:
        count = msgspec.json.decode(file.read_bytes(), type=Marker).workers
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise unusable(folder, error) from error
    except msgspec.MsgspecError as error:
        raise FolderUnusable(f"{file} is damaged: {error}") from error
    if not 1 <= count <= WORKERS_MAX:
        raise FolderUnusable(f"{file} is damaged: the number of workers is {count}")
    return count


def check_folder(folder: Path, count: int) -> int:
    """Return the number of workers that used the folder before, or 0 if it is new. Raises
    FolderUnusable if ``count`` workers cannot use it."""
    before = read_marker(folder)
    if not before:
        used = (METADATA_NAME, TOPICS_FOLDER, IDENTITY_NAME)
        if any((folder / name).exists() for name in used):
            raise FolderUnusable(
                f"the data folder {folder} belongs to a single process; workers cannot use its"
                " messages",
                "start it without --workers, or choose another folder with --data",
            )
    elif count < before:
        raise FolderUnusable(
            f"the data folder {folder} has messages of {before} workers",
            f"start it with --workers {before}, or more",
        )
    return before


def check_not_of_workers(folder: Path) -> None:
    count = read_marker(folder)
    if count:
        raise FolderUnusable(
            f"the data folder {folder} belongs to {count} workers",
            f"start it with --workers {count}, or choose another folder with --data",
        )


def write_marker(folder: Path, count: int) -> None:
    replace_file(folder / MARKER_NAME, msgspec.json.encode(Marker(count)) + b"\n")


def kafka_addresses(config: Config, host: str, port: int) -> Sequence[tuple[str, int]]:
    """Return the Kafka address of each worker: consecutive ports, or 0 for any free port."""
    return [(host, port + at if port else 0) for at in range(config.node.workers)]


def advertised(config: Config, worker: int) -> str:
    """Return the advertised Kafka address of a worker, or an empty string if none is set."""
    if not config.kafka.advertised:
        return ""
    host, port = cluster_config.parse_listen(config.kafka.advertised)
    return str(cluster_config.NodeAddress(host, port + worker - 1))


def metadata_settings(folder: Path, name: str, at: Addresses) -> dict[str, str]:
    return {
        "node.data": str(folder / METADATA),
        "node.roles": _roles(cluster_config.SERVICE),
        "node.name": f"{name}-{METADATA}",
        "internal.listen": at.metadata,
        "admin.listen": at.metadata_admin,
        # It serves no clients.
        "http.listen": f"{LOOPBACK}:0",
        "kafka.listen": KAFKA_OFF,
    }


def worker_settings(
    config: Config, worker: int, folder: Path, name: str, at: Addresses
) -> dict[str, str]:
    return {
        "node.data": str(worker_folder(folder, worker)),
        "node.roles": _roles(cluster_config.ATTACHED),
        "node.name": f"{name}-{worker}",
        "cluster.node": str(worker),
        "cluster.replicas": "1",
        "cluster.in_sync_min": "1",
        "metadata.service": at.metadata,
        "internal.listen": at.internal[worker - 1],
        "http.listen": at.http,
        "http.reuse_port": "true",
        "kafka.listen": at.kafka[worker - 1],
        "kafka.advertised": advertised(config, worker),
        "admin.listen": at.admin[worker - 1],
    }


def shared_settings(*, is_auth_on: bool) -> dict[str, str]:
    return {
        "node.workers": "0",
        "auth.mode": "on" if is_auth_on else "off",
        "internal.advertised": "",
        "internal.certificate": "",
        "internal.key": "",
        "internal.ca": "",
        "metadata.members": "",
    }


def partition_settings(loaded: Loaded[Config]) -> dict[str, str]:
    """Return a default partition count of one per worker, or {} if a count is configured."""
    if loaded.origins[PARTITIONS] != DEFAULT:
        return {}
    config = loaded.config
    return {PARTITIONS: str(max(config.queue.partitions, config.node.workers))}


def worker_folder(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}"


def _roles(roles: frozenset[cluster_config.Role]) -> str:
    return ",".join(sorted(roles, reverse=True))


def arguments(settings: Mapping[str, str], config_file: str | None) -> list[str]:
    found = [] if config_file is None else ["--config", config_file]
    for key, flag in _FLAGS.items():
        if key in settings:
            found += [f"--{flag}", settings[key]]
    return found


def environment(
    settings: Mapping[str, str], flags: Mapping[str, object], env: Mapping[str, str]
) -> dict[str, str]:
    """Return ``env`` with variables for ``flags`` and ``settings``; ``settings`` override flags."""
    given = {
        _variable(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in flags.items()
        if value is not None
    }
    settled = {_variable(key): value for key, value in settings.items()}
    return {**env, **given, **settled}


def _variable(key: str) -> str:
    return ENV_PREFIX + key.replace(".", ENV_SEPARATOR, 1).upper()


def next_pause_ms(before_ms: int, served_ms: int) -> int:
    """Return the delay before a restart: doubled each time, reset after a minute of service."""
    if not before_ms or served_ms >= STEADY_MS:
        return PAUSE_MS_MIN
    return min(2 * before_ms, PAUSE_MS_MAX)
