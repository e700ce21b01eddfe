"""Figures, notes and columns in optuna-dashboard, and a live page beside it."""
