"""A move that is checked: the user's own training undisturbed, paused, and on other slots."""
