"""The table of docs/adversity.md says what every method takes and what it refuses."""

import pytest
from what_goes_together import COLUMNS, NO, NONE, ROWS, YES, outcome, table

TABLE = table()


def test_the_table_is_complete():
    assert set(TABLE) == set(ROWS)
    for cells in TABLE.values():
        assert set(cells) == set(COLUMNS) and set(cells.values()) <= {YES, NO, NONE}


@pytest.mark.parametrize("row", ROWS)
def test_methods_take_what_it_says(row):
    ROWS[row]()  # so that what is refused is what was added
    assert {column: outcome(row, column) for column in COLUMNS} == TABLE[row]
