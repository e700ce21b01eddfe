"""A process that trains: it imports neither the table's SQL nor any policy."""
