"""How a pool is divided among studies."""
