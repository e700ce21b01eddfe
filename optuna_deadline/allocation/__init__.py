"""The allocation table in the study's database: the plan and the grants."""
