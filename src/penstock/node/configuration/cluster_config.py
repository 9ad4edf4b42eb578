"""Settings of a node that is one of several: connections between nodes, the cluster, and where the
metadata is. ``config.py`` contains all other settings."""

from penstock.metadata.cluster_entries import NODE_ID_MAX
from penstock.model.levels import LEVEL_MAX
from penstock.node.configuration.addresses import (
    check_listen_or_empty,
    check_members,
    check_node_addresses,
)
from penstock.node.configuration.settings import Section, option, path_option


class InternalConfig(Section):
    listen: str = option(
        "",
        "Address for requests of other nodes, of a metadata node or a cluster node.",
        check=check_listen_or_empty,
    )
    advertised: str = option(
        "",
        "Address of this node for other nodes; empty: the listen address.",
        check=check_listen_or_empty,
    )
    cluster: str = option(
        "penstock",
        "Name of the cluster; nodes with another name are rejected.",
        min_length=1,
        max_length=128,
    )
    certificate: str = path_option(
        "File with the certificate of this node and its chain, PEM, for connections to and from"
        " other nodes; it must contain node.name. Empty: no TLS between nodes, allowed only on"
        " a loopback address. A running node loads changed files."
    )
    key: str = path_option("File with the private key, PEM; empty: the certificate file.")
    ca: str = path_option(
        "File with the CA of the node certificates, PEM. This CA must sign nothing else."
    )


class ClusterConfig(Section):
    node: int = option(
        0,
        "Number of this node in its cluster, never reused for another machine; 0: a single node.",
        between=(0, NODE_ID_MAX),
    )
    etcd: str = option(
        "",
        "Addresses of the etcd with the cluster's metadata, host:port, separated by commas.",
        check=check_node_addresses,
        max_length=8_192,
    )
    etcd_ca: str = path_option("File with the CA of etcd, PEM; empty: no TLS.")
    etcd_certificate: str = path_option("File with the client certificate for etcd, PEM.")
    etcd_key: str = path_option("File with its private key, PEM.")
    replicas: int = option(
        3, "Number of replicas of a new partition; with fewer nodes, one per node.", between=(1, 9)
    )
    in_sync_min: int = option(
        2,
        "Smallest number of in-sync replicas, at most cluster.replicas; with fewer, new"
        " messages are rejected.",
        between=(1, 9),
    )
    rack: str = option(
        "", "Rack or zone of this node; replicas are placed in different racks.", max_length=128
    )
    lease_ms: int = option(
        6_000, "Time without contact after which a node is declared dead.", between=(1_000, 60_000)
    )
    feature_level_max: int = option(
        0,
        "Highest feature level of this node, to test an upgrade: the node behaves like an"
        " earlier version; 0: the highest level that it supports.",
        between=(0, LEVEL_MAX),
    )


class MetadataConfig(Section):
    service: str = option(
        "",
        "Addresses of the metadata nodes, host:port, or name=host:port to accept only the node"
        " of this name, separated by commas; empty: the metadata is in this process.",
        check=check_node_addresses,
        max_length=8_192,
    )
    members: str = option(
        "",
        "All metadata nodes, name=host:port, separated by commas; with more topics than"
        " whole_topics_max the topics are divided among them.",
        check=check_members,
        max_length=8_192,
    )
    whole_topics_max: int = option(
        50_000,
        "Number of topics up to which every metadata node has all topics; above it, each node"
        " has a part of them.",
        between=(1, 1_000_000),
    )
