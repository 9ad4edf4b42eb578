"""Both ends of a broker call between nodes: the broker of another node, and the service there."""
