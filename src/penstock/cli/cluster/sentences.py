"""Describes a cluster in sentences: what is wrong, and what is worth knowing. Only the reply of the
admin API is used, so that all commands come to the same result."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.model import troubles
from penstock.model.units import counted

Found = Mapping[str, Any]


def problems(found: Found) -> list[str]:
    """Return each trouble with what to do; troubles of the replying node itself come last."""
    known = [] if found["manager"] is not None else [troubles.no_manager()]
    known += [
        troubles.node_dead(
            node["node"],
            node["name"],
            node["replicas"],
            was_stopped=node["is_leaving"],
            is_draining=node["is_draining"],
        )
        for node in found["nodes"]
        if not node["is_alive"]
    ]
    known += troubles.partition_troubles(found["partitions"])
    if found["trouble"] is not None:
        known.append(troubles.metadata_away(found["trouble"]))
    lines = [_line(one.text, one.do, one.facts().get("reason")) for one in known]
    kinds = {one.kind.value for one in known}
    own = [one for one in found.get("reasons") or () if one["kind"] not in kinds]
    return lines + own_troubles(found["node"], own)


def own_troubles(node: int, reasons: Sequence[Found], *, are_warnings: bool = False) -> list[str]:
    """Return the troubles, or the warnings, that a node reports about itself. Troubles of the whole
    cluster are left out: ``problems`` derives them from the cluster's numbers."""
    return [
        f"node {node}: {_line(one['text'], one['do'])}"
        for one in reasons
        if one["kind"] not in troubles.CLUSTER_WIDE
        and (one["kind"] in troubles.WARNINGS) is are_warnings
    ]


def _line(text: str, do: str, reason: str | None = None) -> str:
    return f"{text} ({reason}); do: {do}" if reason else f"{text}; do: {do}"


def remarks(found: Found) -> list[str]:
    lines = own_troubles(found["node"], found.get("reasons") or (), are_warnings=True)
    for node in found["nodes"]:
        if node["is_draining"] and node["is_alive"]:
            held = node["replicas"]
            rest = f"has {counted(held, 'partition')} left" if held else "is empty"
            lines.append(f"node {node['node']} is being drained and {rest}")
        elif node["is_leaving"] and node["is_alive"]:
            lines.append(f"node {node['node']} is about to stop")
    moving = found["partitions"]["moving"]
    if moving:
        lines.append(f"{counted(moving, 'partition')} moving")
    versions = sorted({node["version"] for node in found["nodes"] if node["is_alive"]})
    if len(versions) > 1:
        lines.append(f"nodes run different versions: {', '.join(versions)}")
    level = found["level"]
    if level["wanted"] is not None:
        lines.append(f"the feature level is being raised to {level['wanted']}")
    elif level["latest"] > level["in_force"]:
        lines.append(
            f"all nodes support feature level {level['latest']}: run `penstock cluster upgrade`"
        )
    return lines


def verdict(found: Found, wrong: Sequence[str]) -> str:
    alive = sum(node["is_alive"] for node in found["nodes"])
    size = f"{counted(alive, 'node')}, {counted(found['partitions']['total'], 'partition')}"
    size += f", level {found['level']['in_force']}"
    return f"something is wrong: {size}" if wrong else f"healthy: {size}"


def state_of_node(node: Found) -> str:
    alive = "leaving" if node["is_leaving"] else "alive"
    marks = [mark for mark in ("draining", "manager") if node[f"is_{mark}"]]
    return ", ".join((alive if node["is_alive"] else "away", *marks))


def levels_of_node(node: Found) -> str:
    lowest, highest = node["feature_level_min"], node["feature_level"]
    return f"{highest}" if lowest == highest else f"{lowest}-{highest}"


def dangers(safety: Found) -> str:
    """Return why a node may not stop yet."""
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
