"""Any of the methods on a problem of your own."""
