"""Shockwave's market: jobs buy turns, planned ahead."""
