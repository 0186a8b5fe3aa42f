"""Rows of a table of tests that are left to the slow ones."""

import pytest


def slow(*values):
    """A row of `pytest.mark.parametrize` that has relatives among the fast ones."""
    return pytest.param(*values, marks=pytest.mark.slow)


def marked(names, *those):
    """All rows; those take longest, and have relatives among the others."""
    unknown = {*those} - {*names}
    assert not unknown, unknown
    return [slow(name) if name in those else name for name in names]
