"""What exists only to be fast on CPUs; only `nn` imports it."""
