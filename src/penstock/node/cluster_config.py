"""Settings of a node that is one of several: how nodes talk to each other, and where the metadata
is. A part of ``config.py``, which has all the others."""

from typing import Annotated

import msgspec

from penstock.metadata.cluster_entries import NODE_ID_MAX
from penstock.model.levels import LEVEL_MAX
from penstock.node.addresses import check_members, check_places, parse_listen
from penstock.node.settings import note


def _check_listen(text: str) -> str | None:
    try:
        if text:
            parse_listen(text)
    except ValueError as error:
        return str(error)
    return None


class InternalConfig(msgspec.Struct, frozen=True, kw_only=True):
    listen: Annotated[
        str,
        note(
            "Address for calls of other nodes: for the role metadata, and for a node of a cluster.",
            check=_check_listen,
        ),
    ] = ""
    advertised: Annotated[
        str,
        note(
            "Where other nodes reach this one, if not at the address it listens on.",
            check=_check_listen,
        ),
    ] = ""
    cluster: Annotated[
        str,
        note(
            "Name of the cluster; a node with another one is not talked to.",
            min_length=1,
            max_length=128,
        ),
    ] = "penstock"
    certificate: Annotated[
        str,
        note(
            "Certificate of this node with its chain, in PEM, shown to other nodes at both ends of"
            " a connection; node.name must be in it. Empty: no TLS between nodes, which only a"
            " loopback address may do without. Changed files are taken over while the node runs.",
            max_length=4_096,
        ),
    ] = ""
    key: Annotated[
        str,
        note(
            "The certificate's key, in PEM; empty: in the same file.",
            max_length=4_096,
        ),
    ] = ""
    ca: Annotated[
        str,
        note(
            "Authority that signs the certificates of nodes, and of nobody else, in PEM.",
            max_length=4_096,
        ),
    ] = ""


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    node: Annotated[
        int,
        note(
            "Number of this node in its cluster, never given to another machine; 0: a node by"
            " itself.",
            ge=0,
            le=NODE_ID_MAX,
        ),
    ] = 0
    etcd: Annotated[
        str,
        note(
            "Members of the etcd that the cluster keeps its metadata in, host:port with commas"
            " between.",
            check=check_places,
            max_length=8_192,
        ),
    ] = ""
    etcd_ca: Annotated[
        str, note("Authority of etcd's certificates, in PEM; empty: no TLS.", max_length=4_096)
    ] = ""
    etcd_certificate: Annotated[
        str, note("This node's certificate for etcd, in PEM.", max_length=4_096)
    ] = ""
    etcd_key: Annotated[str, note("The certificate's key, in PEM.", max_length=4_096)] = ""
    replicas: Annotated[
        int,
        note(
            "Nodes that hold a new partition; with fewer nodes, as many as there are.", ge=1, le=9
        ),
    ] = 3
    in_sync_min: Annotated[
        int,
        note(
            "Of these, so many must have a message before it is answered, and no fewer may be"
            " counted on; at most as many as there are replicas.",
            ge=1,
            le=9,
        ),
    ] = 2
    rack: Annotated[
        str,
        note("Where this node stands: replicas are spread over several.", max_length=128),
    ] = ""
    lease_ms: Annotated[
        int,
        note(
            "After so long without a word from it a node is taken for dead.",
            ge=1_000,
            le=60_000,
        ),
    ] = 6_000
    feature_level_max: Annotated[
        int,
        note(
            "For rehearsing an upgrade: this node behaves as one of an earlier version, which"
            " speaks no higher feature level than this; 0: the highest it can.",
            ge=0,
            le=LEVEL_MAX,
        ),
    ] = 0


class MetadataConfig(msgspec.Struct, frozen=True, kw_only=True):
    service: Annotated[
        str,
        note(
            "Metadata nodes to ask, host:port with commas between, or name=host:port where only"
            " that node may answer; empty: the metadata is in this process.",
            check=check_places,
            max_length=8_192,
        ),
    ] = ""
    members: Annotated[
        str,
        note(
            "All metadata nodes, as name=host:port with commas between: those that share the"
            " topics when there are more than whole_topics_max.",
            check=check_members,
            max_length=8_192,
        ),
    ] = ""
    whole_topics_max: Annotated[
        int,
        note(
            "Up to so many topics every metadata node holds all of them; with more of them each"
            " holds its part.",
            ge=1,
            le=1_000_000,
        ),
    ] = 50_000
