"""Checkpoints: complete or absent files, their stores, and how they are restored."""
