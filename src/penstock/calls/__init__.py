"""Calls from one role of a node to another, on this node or on another one.

``bulkhead`` and ``callees`` limit the calls to each callee. ``routing`` finds the node that leads a
partition. ``remote`` holds both ends of a broker call between nodes, ``internal`` the
connections."""
