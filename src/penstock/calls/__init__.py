"""Calls from one role to another, on this node or another one.

``bulkhead``, ``callees``: limits on the calls to each callee. ``routing``: finds the node that
leads. ``remote``: both ends of a broker call between nodes. ``internal``: the connections.
"""
