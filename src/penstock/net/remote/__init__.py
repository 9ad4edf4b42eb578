"""Another node's broker, as if it were here: ``model.ports`` over calls between nodes.

``broker`` has the calls, ``watches`` the listeners, which become questions that wait. Which node to
ask, and what to do when it is not there or not the right one, is for ``frontend/routing``.
"""

from penstock.net.remote.broker import RemoteBroker

__all__ = ["RemoteBroker"]
