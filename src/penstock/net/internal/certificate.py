"""Who may call itself what: a node's id must be in the certificate it shows.

An authority that signs for the whole cluster only says that a node belongs to it. That this one is
node 3, and not another whose disk was lost with its key, is said by the name in the certificate: a
DNS name or URI among the alternative names, or the common name.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.wire.internal.faults import HelloRefused

Certificate = Mapping[str, Any]  # as ``ssl.SSLSocket.getpeercert`` has it
# Given the id a peer claims and its certificate (None: it showed none). Raises HelloRefused.
PeerCheck = Callable[[str, Certificate | None], None]


def names_in(certificate: Certificate) -> frozenset[str]:
    subject = (pair for group in certificate.get("subject", ()) for pair in group)
    names = {value for kind, value in subject if kind == "commonName"}
    names.update(
        value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")
    )
    return frozenset(names)


def name_in_certificate(node_id: str, certificate: Certificate | None) -> None:
    """The usual ``PeerCheck``."""
    if not certificate:
        raise HelloRefused(f"Node {node_id} showed no certificate.")
    if node_id not in names_in(certificate):
        raise HelloRefused(f"The certificate shown by node {node_id} is for another node.")
