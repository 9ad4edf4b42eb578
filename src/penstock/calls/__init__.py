"""Calls between the roles of a node, such as frontend and broker, on the same or another node.

``bulkhead`` and ``callees`` limit the calls to each callee, ``routing`` finds the node that leads a
partition, ``remote`` has the client and server of broker calls, ``internal`` the connections."""
