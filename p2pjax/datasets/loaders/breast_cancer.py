"""569 breast tumours, malignant or benign, that come with scikit-learn.

Wolberg, Mangasarian, Street, Street (1993), "Breast cancer Wisconsin (diagnostic)", UCI
Machine Learning Repository, https://doi.org/10.24432/C5DW2B. Nothing to download.
"""

import numpy as np

from p2pjax.datasets.stacking import Examples

NUM_FEATURES = 30


def load() -> Examples:
    """Loads all tumours; the 212 malignant ones are class 1, and all are of user 0.

    Features are centred and scaled over all rows, as those of the hospital's table are
    (`hospital`): their scales differ by a factor of 100,000.
    """
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    x = (table.data - table.data.mean(0)) / table.data.std(0)  # [569, 30]
    y = (table.target == 0).astype(np.int32)  # scikit-learn's 0 is malignant
    return Examples(x.astype(np.float32), y, user=np.zeros_like(y), num_classes=2)
