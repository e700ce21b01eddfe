"""Division of a pool among studies."""
