"""Checks of a move: the user's own training undisturbed, paused, and on other slots."""
