"""Which axis of which array holds the units of which layer, read off a jaxpr."""
