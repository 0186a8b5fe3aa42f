"""Whom to learn from: one rule per file."""
