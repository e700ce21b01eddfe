"""Forecasts from reports, as pure functions."""
