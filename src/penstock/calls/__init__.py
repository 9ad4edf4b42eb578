"""Calls from one role to another, on this node or another one.

``bulkhead``, ``breaker``, ``callees``: limits on the calls to each callee. ``guarded``: the broker
of this node behind its bulkhead. ``routing``: finds the node that leads. ``remote``: both ends of a
broker call between nodes. ``internal``: the connections between nodes.
"""
