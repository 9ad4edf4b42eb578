"""A broker's three ports as one object, where they are served by more than one."""

from penstock.model.ports import Backend, Shares, Streams


class Joined:
    """Implements ``BrokerCalls`` with the methods of others, and costs nothing more to call."""

    def __init__(self, backend: Backend, streams: Streams, shares: Shares) -> None:
        self.append = backend.append
        self.lease = backend.lease
        self.ack = backend.ack
        self.extend = backend.extend
        self.purge = backend.purge
        self.stats = backend.stats
        self.peek = backend.peek
        self.start_move = backend.start_move
        self.cancel_move = backend.cancel_move
        self.moves = backend.moves
        self.append_batches = streams.append_batches
        self.append_marker = streams.append_marker
        self.is_in_transaction = streams.is_in_transaction
        self.producers = streams.producers
        self.ends = streams.ends
        self.fetch = streams.fetch
        self.find_time = streams.find_time
        self.max_timestamp = streams.max_timestamp
        self.delete_records = streams.delete_records
        self.log_bytes = streams.log_bytes
        self.on_advance = streams.on_advance
        self.open_share = shares.open_share
        self.find_share = shares.find_share
        self.close_share = shares.close_share
        self.acquire = shares.acquire
        self.finish = shares.finish
        self.prolong = shares.prolong
        self.on_available = shares.on_available
        self.share_start = shares.share_start
        self.share_lag = shares.share_lag
        self.restart_share = shares.restart_share
