"""Complete local training, then convex or other sums of models."""
