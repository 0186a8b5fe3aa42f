"""All that happens between a sender and a receiver."""
