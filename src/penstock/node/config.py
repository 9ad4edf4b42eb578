"""Every setting of a node: one frozen struct per section, each value with its default, its bounds
and the sentence that ``penstock generate config`` prints above it. Parsed once at start and handed
down by section; nothing else reads the environment. How values are found is in ``settings.py``.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.model import limits, names
from penstock.model.topic import Fsync
from penstock.node import settings
from penstock.node.addresses import parse_listen, parse_places
from penstock.node.cluster_config import ClusterConfig, InternalConfig, MetadataConfig
from penstock.node.roles import ALL, ATTACHED, EVERYTHING, SERVICE, check_roles, parse_roles
from penstock.node.settings import ConfigInvalid, Loaded, Origin, OriginKind, Row, describe, note
from penstock.telemetry.logs import LogFormat

__all__ = [
    "SYSTEM_FILE",
    "AdminConfig",
    "AuditConfig",
    "Config",
    "ConfigInvalid",
    "HttpConfig",
    "InternalConfig",
    "KeysConfig",
    "Loaded",
    "LogConfig",
    "LogLevel",
    "MetadataConfig",
    "Mode",
    "NodeConfig",
    "Origin",
    "OriginKind",
    "QueueConfig",
    "Row",
    "TelemetryConfig",
    "UsageConfig",
    "config_files",
    "describe",
    "load",
    "parse_listen",
    "render_toml",
]

SYSTEM_FILE = Path("/etc/penstock/penstock.toml")


WORKERS_MAX = 64
KAFKA_OFF = "off"
KAFKA_LISTEN_DEFAULT = ("127.0.0.1", 9092)


class Mode(StrEnum):
    DEV = "dev"
    PROD = "prod"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _check_listen(text: str) -> str | None:
    try:
        parse_listen(text)
    except ValueError as exc:
        return str(exc)
    return None


def _check_listen_or_empty(text: str) -> str | None:
    return _check_listen(text) if text else None


def _check_kafka_listen(text: str) -> str | None:
    return None if text == KAFKA_OFF else _check_listen_or_empty(text)


def _check_account(text: str) -> str | None:
    return None if names.is_account(text) else "expected twelve digits"


def _check_region(text: str) -> str | None:
    return None if names.is_region(text) else "expected 1 to 32 of a-z, 0-9 and -"


def _check_url(text: str) -> str | None:
    if not text:
        return None
    scheme, found, rest = text.partition("://")
    if scheme in ("http", "https") and found and rest and not rest.startswith("/"):
        return None
    return "expected http://host:port or https://host"


def _check_data(text: str) -> str | None:
    return "expected the path of a folder" if not text or "\0" in text else None


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    data: Annotated[
        str, note("Folder of all logs and metadata; created when missing.", check=_check_data)
    ] = "./penstock-data"
    name: Annotated[
        str, note("Name of this node in logs and metrics; empty: the host's name.", max_length=128)
    ] = ""
    roles: Annotated[
        str,
        note(
            "What this process does, commas between: frontend,broker,metadata is everything;"
            " metadata is the metadata service alone, frontend,broker everything else.",
            check=check_roles,
        ),
    ] = ALL
    mode: Annotated[Mode, note("dev offers a call that resets all queues; prod leaves it out.")] = (
        Mode.DEV
    )
    account: Annotated[
        str, note("Account of callers whose key names none.", check=_check_account)
    ] = names.ACCOUNT_DEFAULT
    region: Annotated[
        str, note("Region of callers whose signature names none.", check=_check_region)
    ] = names.REGION_DEFAULT
    workers: Annotated[
        int,
        note(
            "Processes that serve together behind the addresses of one, to use more cores; 0:"
            " everything in this one. More than before may be asked for later, fewer may not.",
            ge=0,
            le=WORKERS_MAX,
        ),
    ] = 0
    drain_ms: Annotated[
        int,
        note(
            "At a stop: how long to go on serving while /readyz already answers 404, so that a"
            " load balancer can turn away first.",
            ge=0,
            le=600_000,
        ),
    ] = 0


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[
        str, note("Address of the SQS endpoint. Port 0 takes any free one.", check=_check_listen)
    ] = "127.0.0.1:9324"
    external_url: Annotated[
        str,
        note(
            "What clients reach this endpoint by, as it stands in queue URLs; empty: the Host"
            " header of each request. While authentication is off, the host of this URL is served"
            " in addition to addresses and local names.",
            check=_check_url,
        ),
    ] = ""
    reuse_port: Annotated[
        bool,
        note(
            "Whether other processes of this machine may listen on the same address: the kernel"
            " spreads connections over them. Workers do so among themselves."
        ),
    ] = False
    connections_max: Annotated[
        int, note("Connections open at once; more are refused.", ge=1, le=1_000_000)
    ] = limits.CONNECTIONS_MAX
    connections_per_ip_max: Annotated[
        int,
        note(
            "Connections open at once from one address; 0: no limit. Behind a proxy all clients"
            " have the address of the proxy.",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    bodies_per_ip_percent: Annotated[
        int,
        note(
            "Percent of the memory for request bodies under way that one address may use, with"
            " authentication on. Behind a proxy all clients have the address of the proxy.",
            ge=1,
            le=100,
        ),
    ] = limits.TENANT_BODIES_PERCENT
    header_ms_max: Annotated[
        int, note("Time a client has to send the head of a request.", ge=100, le=600_000)
    ] = int(limits.HEADER_SECONDS_MAX * 1_000)
    body_ms_max: Annotated[
        int, note("Time a client has to send the body of a request.", ge=100, le=3_600_000)
    ] = int(limits.BODY_SECONDS_MAX * 1_000)
    idle_ms_max: Annotated[
        int, note("Time a connection may stay open without a request.", ge=100, le=3_600_000)
    ] = int(limits.IDLE_SECONDS_MAX * 1_000)
    request_bytes_max: Annotated[
        int, note("Largest body of a request, before decoding.", ge=1_024, le=64 * limits.MIB)
    ] = limits.REQUEST_BYTES_MAX


class KafkaConfig(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[
        str,
        note(
            "Address of the Kafka protocol; empty: 127.0.0.1:9092, or any free port when that one"
            " is taken or http.listen asks for any; off: not served.",
            check=_check_kafka_listen,
        ),
    ] = ""
    advertised: Annotated[
        str,
        note(
            "host:port that clients are told to connect to; empty: the address listened on.",
            check=_check_listen_or_empty,
        ),
    ] = ""
    auto_create: Annotated[
        bool,
        note(
            "Whether a Metadata request that allows it creates an unknown topic, as producers send"
            " before their first record. A Produce request alone creates none."
        ),
    ] = True
    partitions: Annotated[
        int, note("Partitions of a new topic, where its creator does not say.", ge=1, le=1_024)
    ] = 1
    connections_per_ip_max: Annotated[
        int, note("Connections open at once from one address; 0: no limit.", ge=0, le=1_000_000)
    ] = 0
    frame_bytes_max: Annotated[
        int, note("Largest request.", ge=64 * limits.KIB, le=1_024 * limits.MIB)
    ] = 100 * limits.MIB
    login_ms: Annotated[
        int,
        note(
            "How long a log-in is good for, before a client has to prove itself again on the same"
            " connection; 0: as long as the connection.",
            ge=0,
            le=86_400_000,
        ),
    ] = 0


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[
        str,
        note(
            "Address of health checks, metrics and the admin API; empty: the host of http.listen"
            " and its port plus one, or any free port when that one is taken.",
            check=_check_listen_or_empty,
        ),
    ] = ""
    token: Annotated[
        str,
        note(
            "When set, metrics and the admin API want it as a bearer token; health checks stay"
            " open. The file form keeps it out of this one.",
            is_secret=True,
            max_length=4_096,
        ),
    ] = ""


class AuthMode(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True):
    mode: Annotated[
        AuthMode,
        note(
            "Whether callers must prove who they are: auto = off while every listener is on a"
            " loopback address, on otherwise."
        ),
    ] = AuthMode.AUTO
    insecure: Annotated[
        bool,
        note(
            "Serve other machines without TLS, or without asking who they are. Passwords, keys and"
            " messages can then be read on the way."
        ),
    ] = False


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    cert_file: Annotated[
        str,
        note(
            "Certificate with its chain, in PEM, for every listener; empty: no TLS. Changed files"
            " are taken over while the server runs.",
            max_length=4_096,
        ),
    ] = ""
    key_file: Annotated[str, note("The certificate's key, in PEM.", max_length=4_096)] = ""
    client_ca_file: Annotated[
        str,
        note(
            "When set, clients must show a certificate signed by this authority.", max_length=4_096
        ),
    ] = ""


class KeysConfig(msgspec.Struct, frozen=True, kw_only=True):
    master_file: Annotated[
        str,
        note(
            "File with the master key, 32 bytes in base64, that seals secrets in the metadata;"
            " empty: PENSTOCK_MASTER_KEY, or a file made in the data folder.",
            max_length=4_096,
        ),
    ] = ""
    old_master_files: Annotated[
        str,
        note(
            "Files with earlier master keys, commas between; needed until the next start has"
            " sealed everything anew.",
            max_length=65_536,
        ),
    ] = ""
    kms_command: Annotated[
        str,
        note(
            "Command that asks a key management service to wrap and unwrap the master key: JSON on"
            " stdin and stdout; no shell is involved.",
            max_length=4_096,
        ),
    ] = ""
    encrypt_by_default: Annotated[
        bool,
        note("Whether messages of queues and topics are encrypted where nobody has said so."),
    ] = False


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    fsync: Annotated[
        Fsync,
        note(
            "When an append is answered: always = once it is on disk; interval = once written,"
            " synced at fsync_interval_ms; never = once written, synced by the kernel."
        ),
    ] = Fsync.ALWAYS
    fsync_interval_ms: Annotated[
        int, note("How much a power cut may cost with fsync = interval.", ge=1, le=60_000)
    ] = 100
    segment_bytes_max: Annotated[
        int,
        note(
            "A log goes on in a new file beyond this size; whole files are what retention removes.",
            ge=64 * limits.KIB,
            le=1_024 * limits.MIB,
        ),
    ] = limits.SEGMENT_BYTES_MAX
    segment_age_ms_max: Annotated[
        int, note("A log goes on in a new file after this time.", ge=1_000)
    ] = limits.SEGMENT_AGE_MS_MAX
    tail_bytes_max: Annotated[
        int,
        note("Newest part of each partition's log kept in memory.", ge=0, le=1_024 * limits.MIB),
    ] = limits.TAIL_BYTES_MAX
    tails_bytes_max: Annotated[
        int,
        note(
            "The same for all partitions together: those appended to longest ago give theirs up.",
            ge=0,
            le=64 * 1_024 * limits.MIB,
        ),
    ] = limits.TAILS_BYTES_MAX
    disk_reserve_bytes: Annotated[
        int,
        note(
            "Free bytes of the disk below which new messages are rejected; receiving and deleting"
            " use them. 0: 64 MiB, or 5 % of a disk smaller than 1.25 GiB.",
            ge=0,
            le=1_024 * 1_024 * limits.MIB,
        ),
    ] = 0
    retention_check_ms: Annotated[
        int, note("How often expired messages and finished files are removed.", ge=10)
    ] = 30_000
    compaction_check_ms: Annotated[
        int,
        note("How often compacted topics are searched for closed segments to compact.", ge=10),
    ] = 15_000
    scrub_bytes_per_second: Annotated[
        int,
        note(
            "How much of the logs is read over again in a second, at most, to find bytes that have"
            " changed on disk. 0: never.",
            ge=0,
            le=1_024 * limits.MIB,
        ),
    ] = limits.SCRUB_BYTES_PER_SECOND
    scrub_interval_ms: Annotated[
        int, note("How long after its beginning a round is followed by the next.", ge=1_000)
    ] = limits.SCRUB_INTERVAL_MS


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    partitions: Annotated[
        int, note("Partitions of a new queue, where its creator does not say.", ge=1, le=64)
    ] = 1
    in_flight_max: Annotated[
        int,
        note(
            "Messages of one queue that may be leased at once.", ge=1, le=10 * limits.IN_FLIGHT_MAX
        ),
    ] = limits.IN_FLIGHT_MAX
    recreate_guard_ms: Annotated[
        int,
        note(
            "How long the name of a deleted queue stays refused. The public cloud has 60000.",
            ge=0,
            le=limits.DELETED_NAME_MS,
        ),
    ] = 0


class UsageConfig(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, note("Whether requests, messages and bytes are counted for each tenant.")
    ] = True
    flush_ms: Annotated[
        int,
        note(
            "How often counts are written to the topic __usage; as much is lost with a process"
            " that is killed.",
            ge=10,
            le=60_000,
        ),
    ] = 5_000
    retention_ms: Annotated[
        int, note("How long __usage keeps what was written.", ge=limits.MINUTE_MS)
    ] = 30 * 24 * 3_600_000


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        note("Whether changes of queues, topics, groups and identities are noted in __audit."),
    ] = True
    retention_ms: Annotated[
        int, note("How long __audit keeps what was written.", ge=limits.MINUTE_MS)
    ] = 30 * 24 * 3_600_000


class TelemetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    level: Annotated[LogLevel, note("Least important log lines that are still written.")] = (
        LogLevel.INFO
    )
    format: Annotated[
        LogFormat,
        note("Shape of log lines: json, console, or auto = console on a terminal, else json."),
    ] = LogFormat.AUTO
    enabled: Annotated[
        bool, note("Whether rates, durations, depths and lags are written to __telemetry.")
    ] = True
    flush_ms: Annotated[int, note("How often they are written.", ge=100, le=limits.MINUTE_MS)] = (
        10_000
    )
    retention_ms: Annotated[
        int, note("How long __telemetry keeps what was written.", ge=limits.MINUTE_MS)
    ] = 7 * 24 * 3_600_000


class Config(msgspec.Struct, frozen=True, kw_only=True):
    node: NodeConfig = NodeConfig()
    http: HttpConfig = HttpConfig()
    kafka: KafkaConfig = KafkaConfig()
    admin: AdminConfig = AdminConfig()
    auth: AuthConfig = AuthConfig()
    tls: TlsConfig = TlsConfig()
    keys: KeysConfig = KeysConfig()
    log: LogConfig = LogConfig()
    queue: QueueConfig = QueueConfig()
    usage: UsageConfig = UsageConfig()
    audit: AuditConfig = AuditConfig()
    internal: InternalConfig = InternalConfig()
    metadata: MetadataConfig = MetadataConfig()
    cluster: ClusterConfig = ClusterConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


def config_files(explicit: Path | None, *, system: Path = SYSTEM_FILE) -> list[Path]:
    """The files to read, weakest first. The system's may be missing; the one asked for may not."""
    files = [system] if system.is_file() else []
    return [*files, explicit] if explicit is not None else files


def load(
    flags: Mapping[str, object], env: Mapping[str, str], files: Sequence[Path] = ()
) -> Loaded[Config]:
    """Flags by dotted key (``{"http.listen": ...}``, None: not given). Raises ConfigInvalid."""
    loaded = settings.load(Config, flags=flags, env=env, files=files)
    _check_together(loaded.config)
    return loaded


def _check_together(config: Config) -> None:
    """What no setting can say of itself. Raises ConfigInvalid."""
    roles, internal, metadata = parse_roles(config.node.roles), config.internal, config.metadata
    wrong = ""
    if config.node.workers and (
        roles != EVERYTHING
        or internal.listen
        or metadata.service
        or config.cluster.node
        or config.cluster.etcd
    ):
        wrong = (
            "--workers is for one machine by itself: leave out --role, --internal, --metadata,"
            " --node and --etcd"
        )
    elif roles == SERVICE and not internal.listen:
        wrong = "the role metadata needs an address for other nodes: --internal HOST:PORT"
    elif roles != SERVICE and internal.listen and not config.cluster.node:
        wrong = (
            "--internal is for the role metadata on its own (--role metadata), and for a node of a"
            " cluster (--node NUMBER)"
        )
    elif config.cluster.node and (roles == SERVICE or not internal.listen):
        wrong = "a node of a cluster needs an address for the others: --internal HOST:PORT"
    elif config.cluster.node and not config.cluster.etcd and not metadata.service:
        wrong = "a node of a cluster needs to know where its metadata is: --etcd HOST:PORT,..."
    elif config.cluster.etcd and not config.cluster.node:
        wrong = "with --etcd a node has a number: --node NUMBER"
    elif config.cluster.etcd and metadata.service:
        wrong = "the metadata is in etcd or behind a metadata service, not both"
    elif config.cluster.in_sync_min > config.cluster.replicas:
        wrong = "cluster.in_sync_min is at most cluster.replicas"
    elif roles == ATTACHED and not metadata.service:
        wrong = "without the role metadata, say where the metadata is: --metadata HOST:PORT"
    elif roles == EVERYTHING and metadata.service:
        wrong = "with --metadata the roles are frontend,broker: --role frontend,broker"
    elif bool(internal.certificate) != bool(internal.ca):
        wrong = "internal.certificate and internal.ca go together"
    elif roles == SERVICE and metadata.members:
        names = [place.name for place in parse_places(metadata.members)]
        if config.node.name not in names:
            wrong = f"node.name is one of metadata.members: {', '.join(names)}"
    if wrong:
        raise ConfigInvalid(wrong)


def render_toml() -> str:
    """A file with every setting at its default, commented out."""
    head = (
        "# Penstock configuration. Every value here is the default: uncomment what should differ.\n"
        "# Stronger than this file: PENSTOCK_SECTION__KEY in the environment, then flags.\n\n"
    )
    return head + settings.render_toml(Config)
