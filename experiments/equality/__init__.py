"""The package beside implementations that others wrote, on the same small problems."""
