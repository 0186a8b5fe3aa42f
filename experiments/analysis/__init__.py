"""Readers of run folders: figures, tables, comparisons."""
