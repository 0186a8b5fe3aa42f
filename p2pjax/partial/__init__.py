"""Partial models: which cells agents share, and how their members average."""
