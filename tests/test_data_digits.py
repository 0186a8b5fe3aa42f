"""The digits of scikit-learn."""

import numpy as np

from p2pjax.datasets.loaders import digits


def test_digits():
    examples = digits.load()
    assert examples.x.shape == (1797, 8, 8)
    assert examples.x.dtype == np.uint8
    assert (examples.x.min(), examples.x.max()) == (0, 255)
    assert (examples.y.dtype, examples.user.dtype) == (np.int32, np.int32)
    assert set(examples.y) == set(range(10))
    assert set(examples.user) == {0}
    assert examples.num_classes == 10
    # The first row of the first digit is 0 0 5 13 9 1 0 0 out of 16.
    np.testing.assert_array_equal(examples.x[0, 0], [0, 0, 80, 207, 143, 16, 0, 0])
