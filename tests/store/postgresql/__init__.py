"""What is PostgreSQL's alone: the gateway's role, several processes, a server that goes away."""
