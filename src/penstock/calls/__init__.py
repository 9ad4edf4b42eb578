"""Calls from one role of a node to another, on this node or on another one.

``bulkhead`` and ``callees`` limit the calls to each callee. ``routing`` finds the leading node,
``remote`` has both ends of a broker call between nodes, ``internal`` the connections."""
