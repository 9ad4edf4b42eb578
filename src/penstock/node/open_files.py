"""The limit on open files, and how many partitions it is good for.

An open partition holds four descriptors (batches, offsets, times, checks), a connection one. The
limit is raised as far as we are allowed to; a node whose partitions do not fit says so when it
starts, and one whose limit is used up takes no further partitions: both are better than a server
that can neither open a log nor accept a connection.
"""

import logging
import resource

from penstock.model.errors import SetupError

log_ = logging.getLogger(__name__)

FILES_PER_PARTITION = 4
FILES_OF_NODE = 64  # listeners, the metadata store, threads, libraries
# A quarter is left to connections and to readers of older segments.
PARTITIONS_SHARE = 0.75
UNLIMITED = 1 << 30


class TooFewFiles(SetupError):
    """The node cannot open what it has."""


def raise_limit() -> int:
    """Take what we are allowed to; returns the limit that holds from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log_.warning("open files stay limited", extra={"limit": soft, "reason": str(error)})
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
        f"the limit of {limit} open files is too low, for {partition_count} partitions need"
        f" {needed}",
        f"raise it with `ulimit -n {wanted}` or LimitNOFILE={wanted} in the unit file",
    )
