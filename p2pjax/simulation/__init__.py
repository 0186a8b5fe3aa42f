"""Rounds in one compiled scan, seeds side by side."""
