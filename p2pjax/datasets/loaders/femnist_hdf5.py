"""Reads the HDF5 files that TensorFlow Federated offers, writer by writer."""

from collections.abc import Iterator

from p2pjax.datasets.loaders.arrays import as_labels, check_lengths, ink_from_paper
from p2pjax.datasets.loaders.hdf5 import read_numbers
from p2pjax.datasets.loaders.leaf import File
from p2pjax.datasets.loaders.users import Part


def read_writers(file: File, num_classes: int) -> Iterator[Part]:
    """Yields x uint8 [n, 28, 28] and y int32 [n] of each writer of one file.

    Args:
        file: one file with groups examples/<client>, each with pixels [n, 28, 28],
            paper is 1.0 and ink 0.0, and label [n] (or [n, 1]).
        num_classes: labels must lie below.

    Raises:
        InputError: h5py is not installed, or the file cannot be used.
    """
    fields = ("pixels", "label")
    for name, (x, y), source in read_numbers(file.path, fields, "fed_emnist_train.h5"):
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
        pixels = ink_from_paper(x, source, "pixels")
        labels = as_labels(y, num_classes, source, name="label")
        if len(pixels) or len(labels):
            check_lengths(source, pixels=pixels, label=labels)
            yield Part(name, pixels, labels, str(file.path), file.is_test)
