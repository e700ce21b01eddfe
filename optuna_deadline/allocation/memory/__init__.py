"""The table in memory: for simulations and tests."""
