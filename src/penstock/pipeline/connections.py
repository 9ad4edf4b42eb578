"""One Kafka client for each thread of a worker, kept over tasks.

Spark's Python workers live on from one micro-batch to the next; so do their connections, which
saves a small batch the dialling. A client belongs to one thread of one process, hence the keys.
"""

import os
import threading
from collections import OrderedDict
from typing import Final

from penstock.net.kafka_client import KafkaClient
from penstock.pipeline.options import Connection

_CLIENTS_MAX: Final = 8  # clusters, or log-ins, that one worker talks to in turn

_local = threading.local()


def client_for(connection: Connection) -> KafkaClient:
    """Raises SecurityInvalid; connects when first used."""
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.clients = os.getpid(), OrderedDict()
    clients: OrderedDict[Connection, KafkaClient] = _local.clients
    client = clients.pop(connection, None)
    if client is None:
        client = KafkaClient(
            connection.addresses,
            security=connection.security,
            timeout_s=connection.timeout_s,
            client_id=connection.client_id,
        )
    clients[connection] = client
    while len(clients) > _CLIENTS_MAX:
        clients.popitem(last=False)[1].close()
    return client
