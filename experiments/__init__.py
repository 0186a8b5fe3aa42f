"""Experiments: one module each, run as `python -m experiments.<module>`."""
