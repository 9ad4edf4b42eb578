"""The limit of open files, and the number of partitions it allows.

An open partition uses four descriptors (batches, offsets, times, checksums), a connection one. The
limit is raised to the hard limit. A node whose partitions do not fit does not start, and one that
has reached the limit accepts no further partitions: otherwise it could neither open logs nor accept
connections.
"""

import logging
import resource

from penstock.model.errors import SetupError

log_ = logging.getLogger(__name__)

FILES_PER_PARTITION = 4
FILES_OF_NODE = 64  # listeners, the metadata store, threads, libraries
# The rest is for connections and for readers of older segments.
PARTITIONS_SHARE = 0.75
UNLIMITED = 1 << 30


class TooFewFiles(SetupError):
    """The node cannot open all of its partitions."""


def raise_limit() -> int:
    """Raise the soft limit to the hard limit. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log_.warning(
                "limit of open files not raised", extra={"limit": soft, "reason": str(error)}
            )
    return limit_now()


def limit_now() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def partitions_max(limit: int) -> int:
    return max(1, int(limit * PARTITIONS_SHARE) // FILES_PER_PARTITION)


def check_room(partition_count: int, limit: int) -> None:
    needed = FILES_OF_NODE + partition_count * FILES_PER_PARTITION
    if needed <= limit:
        return
    wanted = 1 << (needed * 2 - 1).bit_length()
    raise TooFewFiles(
        f"the limit of {limit} open files is too low: {partition_count} partitions need {needed}",
        f"raise it with `ulimit -n {wanted}` or LimitNOFILE={wanted} in the unit file",
    )
