"""The growth of planner, divider, table and database with the pool, up to ten thousand slots."""
