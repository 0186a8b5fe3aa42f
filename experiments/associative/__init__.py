"""Partial averaging of associative networks, which learn without gradients."""
