"""The tumours of scikit-learn."""

import numpy as np

from p2pjax.datasets.loaders import breast_cancer


def test_breast_cancer():
    examples = breast_cancer.load()
    assert examples.x.shape == (569, breast_cancer.NUM_FEATURES)
    assert (examples.x.dtype, examples.y.dtype) == (np.float32, np.int32)
    assert (examples.y.sum(), set(examples.user)) == (212, {0})
    np.testing.assert_allclose(examples.x.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(examples.x.std(0), 1, atol=1e-5)
    # The first is malignant and larger than most.
    assert examples.y[0] == 1
    assert examples.x[0, 0] > 1
