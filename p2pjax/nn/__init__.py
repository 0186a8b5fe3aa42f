"""Networks of the papers, as flax modules."""
