"""One suite for both engines: what the store's nouns promise, on SQLite and PostgreSQL alike."""
