"""What is decided about the workers of one machine, before anything is started: whether a data
folder is theirs, which settings each process gets, and how long to wait before one is started
again. ``workers.py`` carries it out.

    DATA/workers.json     how many there are; what makes the folder theirs
    DATA/master.key       the key that all of them share, unless one is given
    DATA/metadata/        of the process that keeps topics, users, keys and who has which partition
    DATA/worker-1/ ...    of the others: logs, each as a node of a cluster has it

A worker is an ordinary node of a cluster with one replica of everything. What makes it a worker is
settings alone, so that nothing else in the program has to know of workers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.broker.partitions import TOPICS_FOLDER
from penstock.node.addresses import Place, parse_listen
from penstock.node.config import KAFKA_OFF, WORKERS_MAX, Config
from penstock.node.folder import IDENTITY_NAME, METADATA_NAME, FolderUnusable, unusable
from penstock.node.roles import ATTACHED, SERVICE, Role
from penstock.node.settings import DEFAULT, ENV_PREFIX, ENV_SEPARATOR, Loaded

MARKER_NAME: Final = "workers.json"
LOOPBACK: Final = "127.0.0.1"
METADATA: Final = "metadata"
PARTITIONS: Final = "queue.partitions"

PAUSE_MS_MIN: Final = 200
PAUSE_MS_MAX: Final = 30_000
STEADY_MS: Final = 60_000  # whoever has served for so long is not about to die again

# Given as flags, for whoever looks at a list of processes; everything else by the environment.
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
    """Where the processes listen; all but the first two are of this machine's choice."""

    http: str
    kafka: Sequence[str]  # by worker, "off" for each or an address
    admin: Sequence[str]  # by worker
    internal: Sequence[str]  # by worker
    metadata: str
    metadata_admin: str


# ── The folder ───────────────────────────────────────────────────────────────────────────────


def read_marker(folder: Path) -> int:
    """How many workers a folder is for; 0: it is not for workers. Raises FolderUnusable."""
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
        raise FolderUnusable(f"{file} is damaged: it tells of {count} workers")
    return count


def check_folder(folder: Path, asked: int) -> int:
    """Whether so many workers may use it; returns how many did before. Raises FolderUnusable."""
    before = read_marker(folder)
    if not before:
        used = (METADATA_NAME, TOPICS_FOLDER, IDENTITY_NAME)
        if any((folder / name).exists() for name in used):
            raise FolderUnusable(
                f"the data folder {folder} was used by a single process, whose messages workers"
                " cannot take over",
                "start it without --workers, or choose another folder with --data",
            )
    elif asked < before:
        raise FolderUnusable(
            f"the data folder {folder} has {before} workers, each with messages of its own",
            f"start it with --workers {before}, or more",
        )
    return before


def check_not_of_workers(folder: Path) -> None:
    """For a process that is none: it would find the folder empty. Raises FolderUnusable."""
    count = read_marker(folder)
    if count:
        raise FolderUnusable(
            f"the data folder {folder} belongs to {count} workers",
            f"start it with --workers {count}, or choose another folder with --data",
        )


def write_marker(folder: Path, count: int) -> None:
    file = folder / MARKER_NAME
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(Marker(count)) + b"\n")
    new.replace(file)


# ── What each is started with ────────────────────────────────────────────────────────────────


def kafka_wishes(config: Config, host: str, port: int) -> Sequence[tuple[str, int]]:
    """Addresses that the workers would have, one behind the other; port 0 is any."""
    return [(host, port + at if port else 0) for at in range(config.node.workers)]


def advertised(config: Config, worker: int) -> str:
    """Where clients are told to find a worker's Kafka listener, if not where it listens."""
    if not config.kafka.advertised:
        return ""
    host, port = parse_listen(config.kafka.advertised)
    return str(Place(host, port + worker - 1))


def metadata_settings(folder: Path, name: str, at: Addresses) -> dict[str, str]:
    return {
        "node.data": str(folder / METADATA),
        "node.roles": _roles(SERVICE),
        "node.name": f"{name}-{METADATA}",
        "internal.listen": at.metadata,
        "admin.listen": at.metadata_admin,
        # It serves no clients, whatever the others do.
        "http.listen": f"{LOOPBACK}:0",
        "kafka.listen": KAFKA_OFF,
    }


def worker_settings(
    config: Config, worker: int, folder: Path, name: str, at: Addresses
) -> dict[str, str]:
    """``worker`` counts from 1."""
    return {
        "node.data": str(worker_folder(folder, worker)),
        "node.roles": _roles(ATTACHED),
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
    """Whether callers are asked who they are depends on all addresses together, and a worker knows
    its own; between themselves they need no certificates, for they never leave the machine."""
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
    """Each partition is on one worker: where nobody says how many a new queue gets, it gets enough
    for all of them. FIFO queues whose deduplication ids count for the whole queue have one anyway.
    """
    if loaded.origins[PARTITIONS] != DEFAULT:
        return {}
    config = loaded.config
    return {PARTITIONS: str(max(config.queue.partitions, config.node.workers))}


def worker_folder(folder: Path, worker: int) -> Path:
    return folder / f"worker-{worker}"


def _roles(roles: frozenset[Role]) -> str:
    return ",".join(sorted(roles, reverse=True))


def arguments(settings: Mapping[str, str], config_file: str | None) -> list[str]:
    """Of ``penstock serve``: those settings that have a flag."""
    found = [] if config_file is None else ["--config", config_file]
    for key, flag in _FLAGS.items():
        if key in settings:
            found += [f"--{flag}", settings[key]]
    return found


def environment(
    settings: Mapping[str, str], flags: Mapping[str, object], env: Mapping[str, str]
) -> dict[str, str]:
    """The caller's own, above it the flags that were given here, above those what is settled."""
    given = {_variable(key): _text(value) for key, value in flags.items() if value is not None}
    settled = {_variable(key): value for key, value in settings.items()}
    return {**env, **given, **settled}


def _variable(key: str) -> str:
    return ENV_PREFIX + key.replace(".", ENV_SEPARATOR, 1).upper()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ── Starting again ───────────────────────────────────────────────────────────────────────────


class Pauses:
    """How long to wait before one that has ended is started again: twice as long each time, until
    it has served for a while."""

    def __init__(self) -> None:
        self._next_ms = PAUSE_MS_MIN

    def next_ms(self, served_ms: int) -> int:
        """``served_ms``: from when it was ready to its end; 0: it never was."""
        if served_ms >= STEADY_MS:
            self._next_ms = PAUSE_MS_MIN
        pause_ms = self._next_ms
        self._next_ms = min(2 * pause_ms, PAUSE_MS_MAX)
        return pause_ms
