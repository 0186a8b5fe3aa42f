"""Complete learning methods, one per file; each constructor returns an `Algorithm`."""
