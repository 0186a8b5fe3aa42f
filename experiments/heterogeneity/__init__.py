"""How different the agents' labels are."""
