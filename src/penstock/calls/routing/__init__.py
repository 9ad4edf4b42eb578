"""Sends every call to the node that leads what it concerns.

``router`` chooses the route of a call, ``leaders`` sends and retries it. ``appending`` sends
messages to one of several nodes, ``leasing`` receives from all of them (``node_order``: in which
order), ``joining`` joins the replies of all. ``leader_changes`` moves listeners to new leaders.
"""
