"""Data sets: loaders of public formats and generators."""
