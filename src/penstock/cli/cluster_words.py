"""A cluster in sentences: what is wrong with it, and what is merely worth knowing. Of the admin
API's answer alone, so that every command judges alike."""

from collections.abc import Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]

# Worst first, each with what it means for whoever sends and receives.
_WRONG = (
    ("lost", "of which nobody is known to have everything: they wait for all their replicas"),
    ("leaderless", "without a leader: nothing goes in or out"),
    ("below_minimum", "with fewer replicas in sync than they need: nothing can be sent to them"),
    ("under_replicated", "with fewer replicas than wanted"),
    ("missing", "that have not been created yet"),
    ("orphaned", "without a topic"),
)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def problems(found: Found) -> list[str]:
    lines = []
    if found["trouble"] is not None:
        lines.append(f"node {found['node']}, which answers, may be behind: {found['trouble']}")
    if found["manager"] is None:
        lines.append("nobody manages the cluster: no leader is replaced, no partition created")
    for node in found["nodes"]:
        if not node["is_alive"]:
            name = f" ({node['name']})" if node["name"] else ""
            does = "its partitions are moving away" if node["is_draining"] else "nobody replaces it"
            held = counted(node["replicas"], "partition")
            lines.append(f"node {node['node']}{name} is away, and has {held}: {does}")
    for state, meaning in _WRONG:
        count = found["partitions"][state]
        if count:
            see = f"`penstock cluster partitions --state {state}`"
            lines.append(f"{counted(count, 'partition')} {meaning}; see {see}")
    return lines


def remarks(found: Found) -> list[str]:
    lines = []
    for node in found["nodes"]:
        if node["is_draining"] and node["is_alive"]:
            held = node["replicas"]
            rest = f"has {counted(held, 'partition')} left" if held else "is empty"
            lines.append(f"node {node['node']} is being drained and {rest}")
        elif node["is_leaving"]:
            lines.append(f"node {node['node']} is about to stop")
    moving = found["partitions"]["moving"]
    if moving:
        lines.append(f"{counted(moving, 'partition')} on the move")
    versions = sorted({node["version"] for node in found["nodes"] if node["is_alive"]})
    if len(versions) > 1:
        lines.append(f"nodes run different versions: {', '.join(versions)}")
    level = found["level"]
    if level["wanted"] is not None:
        lines.append(f"the feature level is being raised to {level['wanted']}")
    elif level["latest"] > level["in_force"]:
        lines.append(
            f"all nodes speak feature level {level['latest']}: `penstock cluster upgrade` raises it"
        )
    return lines


def verdict(found: Found, wrong: Sequence[str]) -> str:
    alive = sum(node["is_alive"] for node in found["nodes"])
    size = f"{counted(alive, 'node')}, {counted(found['partitions']['total'], 'partition')}"
    size += f", level {found['level']['in_force']}"
    return f"something is wrong: {size}" if wrong else f"healthy: {size}"


def state_of_node(node: Found) -> str:
    if not node["is_alive"]:
        word = "away"
    elif node["is_leaving"]:
        word = "leaving"
    else:
        word = "alive"
    marks = [
        mark
        for mark, is_so in (("draining", node["is_draining"]), ("manager", node["is_manager"]))
        if is_so
    ]
    return ", ".join((word, *marks))


def levels_of_node(node: Found) -> str:
    lowest, highest = node["feature_level_min"], node["feature_level"]
    return f"{highest}" if lowest == highest else f"{lowest}-{highest}"


def dangers(safety: Found) -> str:
    """Why a node may not stop yet."""
    now = [
        f"{counted(safety[key], 'partition')} {words}"
        for key, words in (
            ("leaderless", "without a leader"),
            ("below_minimum", "with too few replicas in sync"),
            ("missing", "not created yet"),
        )
        if safety[key]
    ]
    then = [
        f"{counted(count, 'partition')} could not be written to without node {risk['node']}"
        for risk in safety["nodes"]
        if (count := risk["unavailable"] + risk["unsendable"])
    ]
    return "; ".join([*now, *then])
