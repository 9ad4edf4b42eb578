"""All settings of a node: a class per section, each setting with its default, its bounds and the
sentence that ``penstock generate config`` prints above it. The settings are parsed once, at the
start; no other module reads the environment. ``settings.py`` reads files, environment and flags."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from penstock.model import limits, names
from penstock.model.topic import Fsync
from penstock.node.configuration import settings
from penstock.node.configuration.cluster_config import (
    ALL,
    ATTACHED,
    EVERYTHING,
    SERVICE,
    ClusterConfig,
    InternalConfig,
    MetadataConfig,
    check_listen,
    check_listen_or_empty,
    check_roles,
    parse_listen,
    parse_node_addresses,
    parse_roles,
)
from penstock.node.configuration.push_config import PushConfig
from penstock.node.configuration.settings import (
    ConfigInvalid,
    Loaded,
    OriginKind,
    Section,
    describe,
    option,
    path_option,
)
from penstock.telemetry.logs import LogFormat

__all__ = ["ConfigInvalid", "InternalConfig", "Loaded", "OriginKind", "describe", "parse_listen"]

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


def _check_url(text: str) -> str | None:
    if not text:
        return None
    scheme, found, rest = text.partition("://")
    if scheme in ("http", "https") and found and rest and not rest.startswith("/"):
        return None
    return "expected http://host:port or https://host"


class NodeConfig(Section):
    data: str = option(
        "./penstock-data",
        "Data folder with logs and metadata; created if missing.",
        check=lambda text: "expected the path of a folder" if not text or "\0" in text else None,
    )
    name: str = option(
        "", "Name of this node in logs and metrics; empty: the host name.", max_length=128
    )
    roles: str = option(
        ALL,
        "Roles of this process, separated by commas: frontend,broker,metadata (all), metadata"
        " (the metadata service only) or frontend,broker (all except the metadata service).",
        check=check_roles,
    )
    mode: Mode = option(
        Mode.DEV, "Mode of the node: dev has an API call that resets all queues, prod does not."
    )
    account: str = option(
        names.ACCOUNT_DEFAULT,
        "AWS account id of requests whose access key belongs to no account.",
        check=lambda text: None if names.is_account(text) else "expected twelve digits",
    )
    region: str = option(
        names.REGION_DEFAULT,
        "Region of requests whose signature has none.",
        check=lambda text: None if names.is_region(text) else "expected 1 to 32 of a-z, 0-9 and -",
    )
    workers: int = option(
        0,
        "Number of worker processes, which share the addresses of the node, to use more cores;"
        " 0: one process serves everything. The number can be raised later, never lowered.",
        between=(0, WORKERS_MAX),
    )
    drain_ms: int = option(
        0,
        "Time between SIGTERM and the stop: requests are still served, but /readyz returns 404,"
        " so that a load balancer removes this node first.",
        between=(0, 600_000),
    )


class HttpConfig(Section):
    listen: str = option(
        "127.0.0.1:9324", "Address of the SQS endpoint. Port 0: any free port.", check=check_listen
    )
    external_url: str = option(
        "",
        "URL of this endpoint for clients, used in queue URLs; empty: the Host header of each"
        " request. With authentication off, requests for the host of this URL are accepted in"
        " addition to addresses and local names.",
        check=_check_url,
    )
    reuse_port: bool = option(
        False,
        "Allow other processes of this machine to listen on the same address (SO_REUSEPORT):"
        " the kernel distributes connections among them. Workers always share their addresses.",
    )
    connections_max: int = option(
        limits.CONNECTIONS_MAX,
        "Maximum number of open connections; more are rejected.",
        between=(1, 1_000_000),
    )
    connections_per_ip_max: int = option(
        0,
        "Maximum number of open connections per client address; 0: no limit. Behind a proxy all"
        " clients have the address of the proxy.",
        between=(0, 1_000_000),
    )
    bodies_per_ip_percent: int = option(
        limits.TENANT_BODIES_PERCENT,
        "Percentage of the memory for unfinished request bodies that one client address may"
        " use, with authentication on. Behind a proxy all clients share its address.",
        between=(1, 100),
    )
    header_ms_max: int = option(
        int(limits.HEADER_SECONDS_MAX * 1_000),
        "Timeout for reading the headers of a request.",
        between=(100, 600_000),
    )
    body_ms_max: int = option(
        int(limits.BODY_SECONDS_MAX * 1_000),
        "Timeout for reading the body of a request.",
        between=(100, 3_600_000),
    )
    idle_ms_max: int = option(
        int(limits.IDLE_SECONDS_MAX * 1_000),
        "Idle timeout of a connection without a request.",
        between=(100, 3_600_000),
    )
    request_bytes_max: int = option(
        limits.REQUEST_BYTES_MAX,
        "Maximum size of a request body in bytes, before decoding.",
        between=(1_024, 64 * limits.MIB),
    )


class KafkaConfig(Section):
    listen: str = option(
        "",
        "Address of the Kafka listener; empty: 127.0.0.1:9092, or any free port if that port is"
        " in use or http.listen has port 0; off: no Kafka listener.",
        check=lambda text: None if text == KAFKA_OFF else check_listen_or_empty(text),
    )
    advertised: str = option(
        "",
        "host:port that is reported to clients; empty: the listen address.",
        check=check_listen_or_empty,
    )
    auto_create: bool = option(
        True,
        "Create an unknown topic when a Metadata request allows it, as producers send it before"
        " their first record. A Produce request never creates a topic.",
    )
    partitions: int = option(1, "Default partition count of new topics.", between=(1, 1_024))
    connections_per_ip_max: int = option(
        0, "Maximum open connections per client address; 0: no limit.", between=(0, 1_000_000)
    )
    frame_bytes_max: int = option(
        100 * limits.MIB,
        "Maximum request size in bytes.",
        between=(64 * limits.KIB, 1_024 * limits.MIB),
    )
    login_ms: int = option(
        0,
        "Lifetime of an authentication, after which a client must reauthenticate on the same"
        " connection; 0: the lifetime of the connection.",
        between=(0, 86_400_000),
    )


class AdminConfig(Section):
    listen: str = option(
        "",
        "Address of health checks, metrics and the admin API; empty: the host of http.listen"
        " and its port plus one, or any free port if that port is in use.",
        check=check_listen_or_empty,
    )
    token: str = option(
        "",
        "Bearer token that metrics and the admin API require; health checks need none. Empty:"
        " no token. Use token_file to keep the token out of this file.",
        is_secret=True,
        max_length=4_096,
    )


class AuthMode(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class AuthConfig(Section):
    mode: AuthMode = option(
        AuthMode.AUTO,
        "Authentication of clients: auto = off if every listener has a loopback address, on"
        " otherwise.",
    )
    insecure: bool = option(
        False,
        "Allow other machines to connect without TLS or authentication. Passwords, keys and"
        " messages can then be read on the network.",
    )


class TlsConfig(Section):
    cert_file: str = path_option(
        "File with the certificate and its chain, PEM, for every listener; empty: no TLS. A"
        " running server loads changed files."
    )
    key_file: str = path_option(
        "File with the private key of the certificate, PEM; empty: the certificate file."
    )
    client_ca_file: str = path_option(
        "File with the CA that signs client certificates; empty: clients need no certificate."
    )


class KeysConfig(Section):
    master_file: str = path_option(
        "File with the master key, 32 bytes in base64, that encrypts secrets in the metadata;"
        " empty: PENSTOCK_MASTER_KEY, or a file that is created in the data folder."
    )
    old_master_files: str = option(
        "",
        "Files with earlier master keys, separated by commas; needed until the next start has"
        " encrypted all secrets with the new key.",
        max_length=65_536,
    )
    kms_command: str = path_option(
        "Command that wraps and unwraps the master key with a key management service: JSON on"
        " stdin and stdout; run without a shell."
    )
    encrypt_by_default: bool = option(
        False, "Encrypt messages of queues and topics that have no encryption setting."
    )


class LogConfig(Section):
    fsync: Fsync = option(
        Fsync.ALWAYS,
        "When a message is acknowledged: always = after it is synced to disk; interval = after"
        " the write, synced every fsync_interval_ms; never = after the write, synced by the OS.",
    )
    fsync_interval_ms: int = option(
        100,
        "Sync interval with fsync = interval; a power cut can lose the messages of this time.",
        between=(1, 60_000),
    )
    segment_bytes_max: int = option(
        limits.SEGMENT_BYTES_MAX,
        "Size at which a log starts a new segment; retention removes whole segments.",
        between=(64 * limits.KIB, 1_024 * limits.MIB),
    )
    segment_age_ms_max: int = option(
        limits.SEGMENT_AGE_MS_MAX, "Age at which a log starts a new segment.", ge=1_000
    )
    tail_bytes_max: int = option(
        limits.TAIL_BYTES_MAX,
        "Size of the newest part of each log that is kept in memory.",
        between=(0, 1_024 * limits.MIB),
    )
    tails_bytes_max: int = option(
        limits.TAILS_BYTES_MAX,
        "Maximum memory for the newest parts of all logs together.",
        between=(0, 64 * 1_024 * limits.MIB),
    )
    disk_reserve_bytes: int = option(
        0,
        "Free disk space below which new messages are rejected; it is reserved for receives and"
        " deletes. 0: 64 MiB, or 5 % of a disk smaller than 1.25 GiB.",
        between=(0, 1_024 * 1_024 * limits.MIB),
    )
    retention_check_ms: int = option(
        30_000, "Interval at which expired messages and unneeded segments are removed.", ge=10
    )
    compaction_check_ms: int = option(
        15_000, "Interval at which compacted topics are checked for segments to compact.", ge=10
    )
    scrub_bytes_per_second: int = option(
        limits.SCRUB_BYTES_PER_SECOND,
        "Maximum speed of the scrub, which reads the logs again to find damaged bytes on disk;"
        " 0: no scrub.",
        between=(0, 1_024 * limits.MIB),
    )
    scrub_interval_ms: int = option(
        limits.SCRUB_INTERVAL_MS,
        "Time from the start of a scrub to the start of the next.",
        ge=1_000,
    )


class QueueConfig(Section):
    partitions: int = option(1, "Default partition count of new queues.", between=(1, 64))
    in_flight_max: int = option(
        limits.IN_FLIGHT_MAX,
        "Maximum number of in-flight messages of a queue: received and not yet deleted.",
        between=(1, 10 * limits.IN_FLIGHT_MAX),
    )
    recreate_guard_ms: int = option(
        0,
        "Time after a deletion in which no queue of the same name can be created. AWS: 60000.",
        between=(0, limits.DELETED_NAME_MS),
    )


class UsageConfig(Section):
    enabled: bool = option(True, "Count requests, messages and bytes of each tenant.")
    flush_ms: int = option(
        5_000,
        "Interval at which counts are written to the topic __usage; a killed process loses the"
        " counts of one interval.",
        between=(10, 60_000),
    )
    retention_ms: int = option(
        30 * 24 * 3_600_000, "Retention of the topic __usage.", ge=limits.MINUTE_MS
    )


class AuditConfig(Section):
    enabled: bool = option(
        True, "Record changes of queues, topics, groups, users and keys in the topic __audit."
    )
    retention_ms: int = option(
        30 * 24 * 3_600_000, "Retention of the topic __audit.", ge=limits.MINUTE_MS
    )


class TelemetryConfig(Section):
    level: LogLevel = option(LogLevel.INFO, "Lowest level of log lines that are written.")
    format: LogFormat = option(
        LogFormat.AUTO,
        "Format of log lines: json, console, or auto = console on a terminal, else json.",
    )
    enabled: bool = option(
        True, "Write rates, durations, depths and lags to the topic __telemetry."
    )
    flush_ms: int = option(
        10_000, "Interval of writing to the topic __telemetry.", between=(100, limits.MINUTE_MS)
    )
    retention_ms: int = option(
        7 * 24 * 3_600_000, "Retention of the topic __telemetry.", ge=limits.MINUTE_MS
    )


class Config(Section):
    node: NodeConfig = NodeConfig()
    http: HttpConfig = HttpConfig()
    kafka: KafkaConfig = KafkaConfig()
    admin: AdminConfig = AdminConfig()
    auth: AuthConfig = AuthConfig()
    tls: TlsConfig = TlsConfig()
    keys: KeysConfig = KeysConfig()
    log: LogConfig = LogConfig()
    queue: QueueConfig = QueueConfig()
    push: PushConfig = PushConfig()
    usage: UsageConfig = UsageConfig()
    audit: AuditConfig = AuditConfig()
    internal: InternalConfig = InternalConfig()
    metadata: MetadataConfig = MetadataConfig()
    cluster: ClusterConfig = ClusterConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


def config_files(explicit: Path | None, *, system: Path = SYSTEM_FILE) -> list[Path]:
    """Return the system's configuration file, if it exists, and ``explicit``, if it is given."""
    files = [system] if system.is_file() else []
    return [*files, explicit] if explicit is not None else files


def load(
    flags: Mapping[str, object], env: Mapping[str, str], files: Sequence[Path] = ()
) -> Loaded[Config]:
    """Load the configuration. The keys of ``flags`` are dotted, such as ``http.listen``."""
    loaded = settings.load(Config, flags=flags, env=env, files=files)
    _check_together(loaded.config)
    return loaded


def _check_together(config: Config) -> None:
    """Raise ConfigInvalid if settings contradict each other."""
    roles, internal, metadata = parse_roles(config.node.roles), config.internal, config.metadata
    node, etcd = config.cluster.node, config.cluster.etcd
    members = [member.name for member in parse_node_addresses(metadata.members)]
    is_alone = roles == EVERYTHING and not (internal.listen or metadata.service or node or etcd)
    for is_wrong, reason in (
        (
            config.node.workers and not is_alone,
            "--workers cannot be used with --role, --internal, --metadata, --node or --etcd",
        ),
        (
            roles == SERVICE and not internal.listen,
            "the role metadata needs an address for other nodes: --internal HOST:PORT",
        ),
        (
            roles != SERVICE and internal.listen and not node,
            "--internal is for a metadata node (--role metadata) or a cluster node (--node NUMBER)",
        ),
        (
            node and (roles == SERVICE or not internal.listen),
            "a cluster node needs an address for other nodes: --internal HOST:PORT",
        ),
        (
            node and not etcd and not metadata.service,
            "a cluster node needs the address of its metadata: --etcd HOST:PORT,...",
        ),
        (etcd and not node, "with --etcd a node needs a number: --node NUMBER"),
        (
            etcd and metadata.service,
            "the metadata is either in etcd (--etcd) or in a metadata service (--metadata)",
        ),
        (
            config.cluster.in_sync_min > config.cluster.replicas,
            "cluster.in_sync_min must be at most cluster.replicas",
        ),
        (
            roles == ATTACHED and not metadata.service,
            "without the role metadata, the metadata needs an address: --metadata HOST:PORT",
        ),
        (
            roles == EVERYTHING and metadata.service,
            "with --metadata the roles must be frontend,broker: --role frontend,broker",
        ),
        (
            bool(internal.certificate) != bool(internal.ca),
            "internal.certificate and internal.ca must be set together",
        ),
        (
            bool(config.push.smtp_url) and not config.push.mail_from,
            "push.smtp_url needs the address of the sender: push.mail_from",
        ),
        (
            roles == SERVICE and members and config.node.name not in members,
            f"node.name must be one of metadata.members: {', '.join(members)}",
        ),
    ):
        if is_wrong:
            raise ConfigInvalid(reason)


def render_toml() -> str:
    head = (
        "# Penstock configuration. Every value is the default: uncomment the lines to change.\n"
        "# Environment variables (PENSTOCK_SECTION__KEY) and flags override this file.\n\n"
    )
    return head + settings.render_toml(Config)
