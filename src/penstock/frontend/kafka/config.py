"""Settings of the Kafka frontend."""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT

PARTITIONS_MAX = 1_024  # per topic; each partition has a log with open files


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    # Address at which clients reach this node. The port may be known only once it is bound.
    advertised: Callable[[], tuple[str, int]]
    node_id: int = 1
    cluster_id: str = ""
    account: str = ACCOUNT_DEFAULT  # of the node and of callers without an account
    region: str = REGION_DEFAULT
    auto_create: bool = True
    partitions_default: int = 1
    replicas_default: int = 1
    in_sync_min_default: int = 1
    log_dir: str = "data"  # only shown by DescribeLogDirs
    is_auth_on: bool = False  # if off, every client may do everything
    is_insecure: bool = False  # accept passwords in plain text from other machines
    login_ms: int = 0  # lifetime of a login; 0: until the connection ends
    protocol: str = "PLAINTEXT"  # security protocol of the listener
    # Settings of the node that DescribeConfigs shows:
    listeners: Callable[[], str] = lambda: ""
    compaction_check_ms: int = 15_000
    connections_max: int = 20_000
    connections_per_ip_max: int = 0  # 0: no limit
    login_refusal_ms: int = 250  # duration of every rejected login, so that it hides the reason

    def __post_init__(self) -> None:
        assert 1 <= self.partitions_default <= PARTITIONS_MAX, "partitions_default out of range"
