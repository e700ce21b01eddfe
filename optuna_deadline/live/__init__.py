"""A study on a terminal."""
