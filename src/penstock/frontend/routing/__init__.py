"""Any node serves any queue, by way of whoever leads its partitions.

``routed`` is the ports over those of this node and of the others; ``leaders`` finds whom to ask and
asks again where that is harmless; ``appending`` sends to one of several nodes and ``leasing``
receives from all of them at once (``turns``: whom it asks first); ``following`` keeps a listener
with a leader that moves; ``changes`` tells whoever waits that leaders have moved.
What is known of leaders is given from outside (``Routes``). How another node is called is
``net/remote``'s business, and what a call means the broker's.
"""

from penstock.frontend.routing.joined import Joined
from penstock.frontend.routing.leaders import BrokerCalls, Routes
from penstock.frontend.routing.routed import Routed

__all__ = ["BrokerCalls", "Joined", "Routed", "Routes"]
