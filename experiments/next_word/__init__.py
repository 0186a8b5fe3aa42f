"""Next-word prediction by peers, one user per agent."""
