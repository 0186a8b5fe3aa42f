"""Methods and graphs under label skew, at equal messages."""
