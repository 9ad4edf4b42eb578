"""What ends a schedule early."""


class Violation(Exception):
    """Something happened that may never happen; its first word names the invariant."""


class PhysicalLoss(Exception):
    """Every copy was destroyed: no protocol helps. The run ends, and it was not silent."""
