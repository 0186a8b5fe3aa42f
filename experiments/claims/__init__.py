"""What five sources claim, and what the kept runs say about it."""
