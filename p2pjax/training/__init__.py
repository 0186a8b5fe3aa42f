"""How agents learn from their own data."""
