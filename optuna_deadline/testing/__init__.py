"""Servers, networks and conformance suites for tests of code that uses optuna_deadline."""
