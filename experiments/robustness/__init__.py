"""Robust rules under attack, and what compression costs."""
