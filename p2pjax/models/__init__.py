"""Flax modules, one family per file; each says where its cells are (`wiring`)."""
