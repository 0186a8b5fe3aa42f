"""Partial averaging on FEMNIST: one writer per agent."""
