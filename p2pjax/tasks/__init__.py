"""What one agent has to learn."""
