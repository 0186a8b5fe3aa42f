"""Every data set by its name: labelled examples, and texts by user.

    examples = load_examples("femnist", "data/femnist", variant="d")
    examples = load_examples("tfds:cifar100")
    documents = load_documents("tff", "data/shakespeare.sqlite.lzma")

What a data set lacks for what is to be done with it, `needs` says.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from p2pjax.datasets.loaders import (
    chat,
    cifar10,
    digits,
    femnist,
    glyphs,
    har,
    idx,
    images_tfds,
    leaf,
    mnist,
    npz,
    reddit,
    shakespeare,
    speakers,
    stackoverflow,
    tff,
    vsn,
)
from p2pjax.datasets.loaders.text import Documents
from p2pjax.datasets.stacking import Examples
from p2pjax.types import InputError

TFDS = "tfds"  # of the names tfds:NAME


def _load_femnist(data_dir: str | Path, variant: str = "a") -> Examples:
    return femnist.variant(femnist.load(data_dir), variant)


def _draw_glyphs(
    num_users: int = 100,
    samples_per_user: int = 200,
    seed: int = 0,
    num_classes: int = 62,
) -> Examples:
    return glyphs.glyphs(
        num_users, samples_per_user, seed=seed, num_classes=num_classes
    )


def _write_speakers(
    num_speakers: int = 100, num_texts: int = 30, seed: int = 0, num_topics: int = 4
) -> Documents:
    return speakers.speakers(num_speakers, num_texts, seed=seed, num_topics=num_topics)


# Those that need no files, and those that read data_dir.
_EXAMPLES_WITHOUT_FILES = {"digits": digits.load, "glyphs": _draw_glyphs}
_EXAMPLES: dict[str, Callable[..., Examples]] = {
    "mnist": mnist.load,
    "femnist": _load_femnist,
    "cifar10": cifar10.load,
    "har": har.load,
    "vsn": vsn.load,
    "npz": partial(npz.load, needs_user=False),
    "leaf": leaf.load,
    "tff": tff.load,
    "idx": idx.load,
}
_TEXTS_WITHOUT_FILES = {"speakers": _write_speakers}
_TEXTS: dict[str, Callable[..., Documents]] = {
    "shakespeare": shakespeare.load,
    "chat": chat.load,
    "reddit": reddit.load,
    "stackoverflow": stackoverflow.load,
    "tff": tff.load_texts,
    "json": shakespeare.load,
}


EXAMPLES = (*_EXAMPLES_WITHOUT_FILES, *_EXAMPLES, TFDS)  # names of labelled examples


TEXTS = (*_TEXTS_WITHOUT_FILES, *_TEXTS)  # names of texts


def load_examples(
    name: str,
    data_dir: str | Path | None = None,
    *,
    allow: Collection[str] | None = None,
    **options: Any,
) -> Examples:
    """Loads labelled examples by the name of their data set or of their format.

    >>> load_examples("digits").x.shape
    (1797, 8, 8)

    Args:
        name: digits or glyphs, which need no files; mnist, femnist, cifar10, har, vsn;
            npz, your own arrays, with or without users; leaf, tff, idx: any data set
            in the format of LEAF, of TensorFlow Federated (sqlite) or of MNIST;
            tfds:NAME, such as tfds:cifar100: any data set of images of TensorFlow
            Datasets.
        data_dir: the folder or file, see each loader's `load`; of tfds where data sets
            are prepared, ~/tensorflow_datasets if None.
        allow: names that are to be had, `tfds` for tfds:NAME; None is all.
        options: more arguments of the loader: `variant` of femnist, `num_users`,
            `samples_per_user`, `seed` and `num_classes` of glyphs, `max_users`,
            `splits` and `label` of tff, `pixels` and `num_classes` of leaf, `download`
            of tfds.

    Returns:
        The examples; all are of user 0 where the data set has no users.

    Raises:
        InputError: no such data set, its files cannot be used, or it has only texts.
    """
    kind, _, tfds_name = name.partition(":")
    known = tuple(EXAMPLES if allow is None else allow)
    if kind in TEXTS and kind not in EXAMPLES:
        raise InputError(
            f"{name}: labelled examples are needed, found texts by user: choose "
            f"{_listed(known)}"
        )
    _check_name(kind, known, EXAMPLES)
    if kind == TFDS:
        if not tfds_name:
            raise InputError(
                f"Need the name of a data set of TensorFlow Datasets after tfds:, got "
                f"{name!r}: give for example tfds:cifar100."
            )
        return _called(images_tfds.load_tfds, name, (tfds_name, data_dir), options)
    if name != kind:
        raise InputError(
            f"Need a name after a colon of tfds only, got {name!r}: leave it out."
        )
    return _loaded(name, data_dir, options, _EXAMPLES_WITHOUT_FILES, _EXAMPLES)


def load_documents(
    name: str,
    data_dir: str | Path | None = None,
    *,
    allow: Collection[str] | None = None,
    **options: Any,
) -> Documents:
    """Loads texts by user by the name of their data set or of their format.

    >>> load_documents("speakers", num_speakers=3).users
    ['speaker_0', 'speaker_1', 'speaker_2']

    Args:
        name: speakers, which needs no files; shakespeare, chat, reddit, stackoverflow;
            tff: any texts in the format of TensorFlow Federated (sqlite); json: your
            own, as `shakespeare.load` has them.
        data_dir: the folder or file, see each loader's `load`.
        allow: names that are to be had; None is all.
        options: more arguments of the loader, such as `max_users` of tff, reddit and
            stackoverflow.

    Raises:
        InputError: no such data set, its files cannot be used, or it has no texts.
    """
    known = tuple(TEXTS if allow is None else allow)
    if name.partition(":")[0] in EXAMPLES and name not in TEXTS:
        raise InputError(
            f"{name}: texts by user are needed, found labelled examples: choose "
            f"{_listed(known)}"
        )
    _check_name(name, known, TEXTS)
    return _loaded(name, data_dir, options, _TEXTS_WITHOUT_FILES, _TEXTS)


def _check_name(name: str, known: Collection[str], all_names: Collection[str]) -> None:
    if name not in all_names or name not in known:
        why = "not to be had here" if name in all_names else "none"
        raise InputError(
            f"Need the name of a data set, {_listed(known)}, got {name!r}, which is "
            f"{why}: choose one of these."
        )


def _loaded(
    name: str,
    data_dir: str | Path | None,
    options: dict[str, Any],
    without_files: Mapping[str, Callable[..., Any]],
    with_files: Mapping[str, Callable[..., Any]],
) -> Any:
    if name in without_files:
        if data_dir is not None:
            raise InputError(
                f"Need no files for the data set {name}, got {data_dir}: leave it out, "
                "or name the data set that is there."
            )
        return _called(without_files[name], name, (), options)
    if data_dir is None:
        raise InputError(
            f"Need the folder or file of the data set {name}, got none: give data_dir, "
            "see data/README.md for how to get the files."
        )
    return _called(with_files[name], name, (data_dir,), options)


def _called(
    loader: Callable[..., Any],
    name: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> Any:
    taken = list(inspect.signature(loader).parameters)[len(arguments) :]
    unknown = [option for option in options if option not in taken]
    if unknown:
        raise InputError(
            f"Need options that the data set {name} has ({', '.join(taken) or 'none'})"
            f", got {', '.join(unknown)}: leave that out."
        )
    return loader(*arguments, **options)


def _listed(names: Collection[str]) -> str:
    shown = [f"{TFDS}:NAME" if name == TFDS else name for name in names]
    return " or ".join((", ".join(shown[:-1]), shown[-1]) if shown[1:] else shown)
