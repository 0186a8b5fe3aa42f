"""Complete learning methods, one per file; every constructor returns an `Algorithm`."""
