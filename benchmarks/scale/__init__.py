"""How planner, divider, table and database grow with the pool, up to ten thousand slots."""
