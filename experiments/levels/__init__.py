"""Averaging levels of any network against FedPer and Ditto at equal bytes."""
