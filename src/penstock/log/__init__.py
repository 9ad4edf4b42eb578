"""The log of one partition on the local disk: append, read, sync and recovery."""
