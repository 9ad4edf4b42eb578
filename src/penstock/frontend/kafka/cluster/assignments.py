"""Checks of replicas that a client assigns to partitions. Pure."""

from collections.abc import Collection, Sequence

from penstock.frontend.kafka.errors import ApiError
from penstock.model.replication import FACTOR_MAX
from penstock.wire.kafka.faults import ErrorCode


def check_replicas(replicas: Sequence[int], nodes: Collection[int]) -> None:
    """Raises ApiError unless these are different nodes that are alive, at least one."""
    if not 1 <= len(replicas) <= FACTOR_MAX:
        raise invalid(f"A partition has 1 to {FACTOR_MAX} replicas, not {len(replicas)}.")
    seen: set[int] = set()
    for node in replicas:
        if node in seen:
            raise invalid(f"Node {node} is in the list of replicas more than once.")
        if node not in nodes:
            raise invalid(f"There is no node {node}, or it is stopped. Nodes: {sorted(nodes)}.")
        seen.add(node)


def check_lists(lists: Sequence[Sequence[int]], nodes: Collection[int], *, factor: int) -> None:
    """Check the lists of several partitions, each with ``factor`` replicas."""
    for replicas in lists:
        check_replicas(replicas, nodes)
        if len(replicas) != factor:
            raise invalid(f"A partition is given {len(replicas)} replicas and must have {factor}.")


def invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
