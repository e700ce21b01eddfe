"""What users write: deadlines, budgets and prices."""
