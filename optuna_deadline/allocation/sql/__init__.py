"""The table in a database: SQLite and PostgreSQL."""
