"""Sends every call to the node that leads what it concerns.

``router`` chooses the route of a call, ``leaders`` sends and retries it. ``appending`` sends to one
or all of several nodes, ``leasing`` receives from all of them.
"""
