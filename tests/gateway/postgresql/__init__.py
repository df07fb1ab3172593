"""What only a gateway on PostgreSQL can go through: its own process, an outage of the server."""
