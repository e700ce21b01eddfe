"""How the database is laid out, opened and spoken to."""
