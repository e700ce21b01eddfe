"""Assigns the trials of a plan to slots."""
