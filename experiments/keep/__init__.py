"""Keeps what finished runs measured, small enough for the repository."""
