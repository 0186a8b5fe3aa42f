"""Partial averaging on the vehicle sensor network: one sensor per agent."""
