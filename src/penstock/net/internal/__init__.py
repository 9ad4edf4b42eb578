"""Calls between nodes over sockets: ``listener`` answers them, ``client`` makes them, ``wire`` is
what the two ends of a connection have in common, ``credentials`` is what a node shows the others
and ``certificate`` says who may call itself what. The bytes are ``wire/internal``'s."""

from penstock.net.internal.certificate import PeerCheck, name_in_certificate
from penstock.net.internal.client import FirstReachable, InternalClient, InternalClients
from penstock.net.internal.credentials import NodeCertificates
from penstock.net.internal.listener import InternalListener
from penstock.net.internal.wire import InternalConfig

__all__ = [
    "FirstReachable",
    "InternalClient",
    "InternalClients",
    "InternalConfig",
    "InternalListener",
    "NodeCertificates",
    "PeerCheck",
    "name_in_certificate",
]
