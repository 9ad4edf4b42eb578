"""A cache of Kafka clients for each thread of a worker. Spark reuses its Python workers for later
micro-batches; reusing their connections too saves time in small batches."""

import os
import threading
from collections import OrderedDict
from typing import Final

from penstock.net.kafka_client.client import KafkaClient
from penstock.pipeline.client.options import Connection

_CLIENTS_MAX: Final = 8  # of one thread, each for another cluster or login

_local = threading.local()


def new_client(connection: Connection) -> KafkaClient:
    """Return a client that connects when first used; the caller closes it. Raises
    SecurityInvalid."""
    return KafkaClient(
        connection.addresses,
        security=connection.security,
        timeout_s=connection.timeout_s,
        client_id=connection.client_id,
    )


def client_for(connection: Connection) -> KafkaClient:
    """Return the client of this thread. Raises SecurityInvalid."""
    if getattr(_local, "pid", None) != os.getpid():
        _local.pid, _local.clients = os.getpid(), OrderedDict()
    clients: OrderedDict[Connection, KafkaClient] = _local.clients
    client = clients.pop(connection) if connection in clients else new_client(connection)
    clients[connection] = client  # as the last, because the first is closed if there are too many
    while len(clients) > _CLIENTS_MAX:
        clients.popitem(last=False)[1].close()
    return client
