"""The database: its schema, its connections and its transactions."""
