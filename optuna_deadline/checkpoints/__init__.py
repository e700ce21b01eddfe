"""Checkpoints: files that are whole or not there, where they are kept, how they come back."""
