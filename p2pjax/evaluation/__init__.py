"""What is measured: of agents, of groups, of populations."""
