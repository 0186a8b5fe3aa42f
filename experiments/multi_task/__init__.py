"""Agents with different tasks that share an encoder."""
