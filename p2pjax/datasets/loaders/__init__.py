"""Loaders of public formats and generators: each returns `Examples` or texts."""
