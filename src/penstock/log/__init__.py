"""One partition's log on local disk: append, read, sync, recover. Synchronous; owns no thread."""
