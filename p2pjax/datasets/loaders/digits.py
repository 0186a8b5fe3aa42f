"""The 1797 digits of 8 x 8 pixels that come with scikit-learn: nothing to download."""

import numpy as np

from p2pjax.datasets.stacking import Examples

SHAPE = (8, 8)  # of an image


def load() -> Examples:
    """Loads the digits; ink 16 becomes 255 and all belong to user 0."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # [1797, 8, 8]
    y = digits.target.astype(np.int32)  # [1797]
    return Examples(x, y, user=np.zeros_like(y), num_classes=10)
