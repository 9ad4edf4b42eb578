"""How the load speaks to each kind of server: what it sends, and what it reads from the answers."""
