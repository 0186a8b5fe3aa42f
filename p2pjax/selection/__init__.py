"""Whom to average with, one method per file."""
