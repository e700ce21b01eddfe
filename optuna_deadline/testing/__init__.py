"""Fakes, servers and suites for testing what stands on optuna_deadline."""
