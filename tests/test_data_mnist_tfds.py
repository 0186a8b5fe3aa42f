"""MNIST through TensorFlow Datasets: mocked, and really prepared on disk.

Neither needs TensorFlow or a network: the images are encoded by Pillow.
"""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from p2pjax.datasets.loaders import images_tfds, mnist
from p2pjax.types import InputError

tfds = pytest.importorskip("tensorflow_datasets")


def png(grey: int) -> io.BytesIO:
    file = io.BytesIO()
    Image.fromarray(np.full((28, 28), grey, np.uint8)).save(file, "png")
    file.seek(0)
    return file


def prepare(data_dir: Path, **splits: range) -> None:
    """Prepares a small "mnist" as a download would: greys 0-4, and 5-7 for testing."""
    splits = splits or {"train": range(5), "test": range(5, 8)}

    class Mnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("3.0.1")  # the version of the real one

        def _info(self):
            features = {
                "image": tfds.features.Image(shape=(28, 28, 1)),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, dl_manager):
            return {
                name: self._generate_examples(greys) for name, greys in splits.items()
            }

        def _generate_examples(self, greys):
            for grey in greys:
                yield grey, {"image": png(grey), "label": grey}

    Mnist(data_dir=data_dir, file_format="array_record").download_and_prepare()


def test_prepared_on_disk(tmp_path):
    prepare(tmp_path)
    examples = images_tfds.load_tfds(data_dir=tmp_path)
    assert (examples.x.shape, examples.x.dtype) == ((8, 28, 28), np.uint8)
    assert sorted(examples.y[:5]) == [0, 1, 2, 3, 4]  # shuffled when prepared
    assert sorted(examples.y[5:]) == [5, 6, 7]
    greys = np.broadcast_to(examples.y[:, None, None], examples.x.shape)
    np.testing.assert_array_equal(examples.x, greys)
    assert (examples.y.dtype, examples.user.dtype) == (np.int32, np.int32)
    np.testing.assert_array_equal(examples.user, np.zeros(8))
    assert examples.is_test is not None
    np.testing.assert_array_equal(examples.is_test, [0] * 5 + [1] * 3)
    assert examples.num_classes == 10


def test_mocked(tmp_path):
    with tfds.testing.mock_data(num_examples=4):
        examples = images_tfds.load_tfds("fashion_mnist", tmp_path, download=True)
    assert (examples.x.shape, examples.x.dtype) == ((8, 28, 28), np.uint8)
    assert examples.num_classes == 10
    np.testing.assert_array_equal(examples.is_test, [0] * 4 + [1] * 4)


def test_nothing_is_downloaded_unless_asked(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("a download was tried")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(
        InputError, match=r"'mnist' must be prepared in .*download=True"
    ):
        images_tfds.load_tfds(data_dir=tmp_path)


def test_a_failed_download(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("no network")

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    with pytest.raises(InputError, match=r"failed \(ConnectionError: no network\)"):
        images_tfds.load_tfds(data_dir=tmp_path, download=True)


def test_no_such_dataset(tmp_path):
    with pytest.raises(InputError, match=r"'mnizt': .* found none: check the name"):
        images_tfds.load_tfds("mnizt", tmp_path)


@pytest.mark.parametrize(
    ("name", "found"),
    [("cifar10", r"image \[32, 32, 3\]"), ("ag_news_subset", r"title \[\]")],
)
def test_another_kind_of_dataset(tmp_path, name, found):
    needed = r"image \[28, 28, 1\] and label"
    with (
        tfds.testing.mock_data(num_examples=2),
        pytest.raises(InputError, match=f"{name}.*{needed}.*found .*{found}.*choose"),
    ):
        mnist.load_tfds(name, tmp_path, download=True)


@pytest.mark.parametrize(
    ("name", "shape", "num_classes"),
    [
        ("mnist", (28, 28), 10),
        ("cifar100", (32, 32, 3), 100),
        ("emnist/letters", (28, 28), 37),
        ("svhn_cropped", (32, 32, 3), 10),
        ("imagenet_resized/8x8", (8, 8, 3), 1000),
        ("eurosat/rgb", (64, 64, 3), 10),
    ],
)
def test_images_of_any_size(tmp_path, name, shape, num_classes):
    with tfds.testing.mock_data(num_examples=2):
        examples = images_tfds.load_tfds(name, tmp_path, download=True)
    assert examples.x.shape == (4, *shape)
    assert examples.x.dtype == np.uint8
    assert examples.num_classes == num_classes
    np.testing.assert_array_equal(examples.is_test, [0, 0, 1, 1])


def test_splits(tmp_path):
    """The test split, or else validation, or else all is training data."""
    prepare(tmp_path / "a", train=range(3), validation=range(3, 5))
    examples = images_tfds.load_tfds(data_dir=tmp_path / "a")
    assert sorted(examples.y[:3]) == [0, 1, 2]
    np.testing.assert_array_equal(examples.is_test, [0, 0, 0, 1, 1])
    prepare(tmp_path / "b", train=range(3), test=range(3, 5), validation=range(5, 8))
    assert sorted(images_tfds.load_tfds(data_dir=tmp_path / "b").y[3:]) == [3, 4]
    prepare(tmp_path / "c", train=range(3))
    examples = images_tfds.load_tfds(data_dir=tmp_path / "c")
    assert (sorted(examples.y), examples.is_test) == ([0, 1, 2], None)
    prepare(tmp_path / "d", test=range(3), extra=range(3))
    with pytest.raises(InputError, match=r"split train is needed, found .*extra"):
        images_tfds.load_tfds(data_dir=tmp_path / "d")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ag_news_subset", r"image and label .*found .*title \[\].*choose another"),
        ("tf_flowers", r"images of one size .*differ, \[None, None, 3\].* as npz"),
        ("iris", r"image and label .*found features \[4\], label"),
        ("eurosat/all", r"image and label .*found .*sentinel2 \[64, 64, 13\]"),
    ],
)
def test_what_is_not_images_of_one_size(tmp_path, name, message):
    with (
        tfds.testing.mock_data(num_examples=2),
        pytest.raises(InputError, match=message),
    ):
        images_tfds.load_tfds(name, tmp_path, download=True)


def test_cut_off_records(tmp_path):
    prepare(tmp_path)
    for file in (tmp_path / "mnist" / "3.0.1").glob("*train.array_record*"):
        file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"split train must be .*RuntimeError.*delete"):
        images_tfds.load_tfds(data_dir=tmp_path)


def test_prepared_in_another_format(tmp_path):
    prepare(tmp_path)
    info = tmp_path / "mnist" / "3.0.1" / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(InputError, match=r"must be readable as array_record.*delete"):
        images_tfds.load_tfds(data_dir=tmp_path)
    info.write_text(info.read_text()[:100])
    with pytest.raises(InputError, match=r"'mnist' must be readable in .*delete"):
        images_tfds.load_tfds(data_dir=tmp_path)


def test_without_tensorflow_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match=r"pip install 'p2pjax\[tfds\]'"):
        images_tfds.load_tfds()
