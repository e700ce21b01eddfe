"""Benchmarks; each module is a command."""
