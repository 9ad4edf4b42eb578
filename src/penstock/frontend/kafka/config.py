"""The settings of the Kafka frontend."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT

PARTITIONS_MAX = 1_024  # of one topic; each costs open files and a log


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    # Address at which clients reach this node. The port may be known only once it is bound.
    advertised: Callable[[], tuple[str, int]]
    node_id: int = 1
    cluster_id: str = ""
    account: str = ACCOUNT_DEFAULT  # of the node, and of callers without an account
    region: str = REGION_DEFAULT
    auto_create: bool = True
    partitions_default: int = 1
    replicas_default: int = 1
    in_sync_min_default: int = 1
    log_dir: str = "data"  # shown by DescribeLogDirs; nothing opens it
    is_auth_on: bool = False  # off: every client may do everything, with or without a login
    is_insecure: bool = False  # accepts passwords in plain text from other machines
    login_ms: int = 0  # how long a login lasts; 0: as long as the connection
    protocol: str = "PLAINTEXT"  # of the listener, by Kafka's name
    # Settings of the node that DescribeConfigs shows:
    listeners: Callable[[], str] = lambda: ""
    compaction_check_ms: int = 15_000
    connections_max: int = 20_000
    connections_per_ip_max: int = 0  # 0: no limit
    login_refusal_ms: int = 250  # how long every rejected login takes, whatever the reason

    def __post_init__(self) -> None:
        assert 1 <= self.partitions_default <= PARTITIONS_MAX, "partitions_default out of range"
