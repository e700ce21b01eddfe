"""An embedded PostgreSQL server, network namespaces and processes, for benchmarks and tests."""
