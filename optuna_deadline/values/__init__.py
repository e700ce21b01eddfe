"""Deadlines, budgets and prices in the notation of users."""
