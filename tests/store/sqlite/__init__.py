"""What is SQLite's alone: a file that belongs to one process and may be damaged."""
