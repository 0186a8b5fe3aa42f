"""Vectors of texts without any trained model: nothing to download.

Words and pairs of neighbouring words are hashed into bins with a sign, counted,
weighted by how rare they are (tf-idf, fitted on training texts), projected to random
or to principal axes and scaled to length 1. The same texts and seed give the same.
"""

import hashlib
import itertools
import re
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from p2pjax.host_memory import check_room
from p2pjax.types import InputError

NUM_BINS = 2**18


_BLOCK = 20  # dimensions projected at a time: 21 MB of Gaussian numbers


_OVERSAMPLING = 20  # of the randomized decomposition


_ITERATIONS = 1


_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[!?]")  # words, with what asks or shouts


def ngrams(text: str) -> list[str]:
    """Lower-cased words, and pairs of them.

    >>> ngrams("Not good!")
    ['not', 'good', '!', 'not good', 'good !']
    """
    words = _WORD.findall(text.lower())
    return words + [f"{a} {b}" for a, b in itertools.pairwise(words)]


def count_ngrams(texts: Sequence[str]) -> sparse.csr_matrix:
    """How often every bin occurs in every text, with the signs, [texts, bins]."""
    places: dict[str, tuple[int, float]] = {}
    rows, columns, signs = [], [], []
    for row, text in enumerate(texts):
        for ngram in ngrams(text):
            if ngram not in places:
                digest = hashlib.blake2b(ngram.encode(), digest_size=8).digest()
                number = int.from_bytes(digest, "little")
                places[ngram] = number % NUM_BINS, 1.0 - 2.0 * (number >> 63)
            column, sign = places[ngram]
            rows.append(row)
            columns.append(column)
            signs.append(sign)
    shape = (len(texts), NUM_BINS)
    return sparse.csr_matrix((np.asarray(signs, np.float32), (rows, columns)), shape)


def embed(
    counts: sparse.csr_matrix,
    is_train: np.ndarray,
    num_dims: int = 300,
    seed: int = 0,
    *,
    principal: bool = False,
) -> np.ndarray:
    """Vectors of length 1, or 0 where a text has no words, float32 [texts, num_dims].

    Args:
        counts: of `count_ngrams`.
        is_train: [texts] bool, on which texts the rarity of bins is measured; bins that
            none of them has count as rarest.
        num_dims: of a vector.
        seed: of everything random, 0 or more.
        principal: project on the directions in which training texts differ most, found
            by a randomized singular value decomposition (Halko et al. 2011), instead of
            random ones. Needs as many training texts as dimensions.

    Raises:
        InputError: too few training texts, or no dimension.
    """
    num_train = int(np.count_nonzero(is_train))
    least = num_dims if principal else 1
    if num_train < max(least, 1) or num_dims < 1 or seed < 0:
        raise InputError(
            f"Need {max(least, 1)} training texts, one dimension or more and a seed of "
            f"0 or more, got {num_train}, {num_dims} and {seed}."
        )
    check_room(
        2 * 4 * num_dims * counts.shape[0],
        f"vectors of {num_dims} numbers of {counts.shape[0]} texts",
    )
    in_train = counts[np.flatnonzero(is_train)]
    in_texts = np.asarray((in_train != 0).sum(0)).reshape(-1)
    rarity = np.log((1 + num_train) / (1 + in_texts)) + 1
    scale = sparse.diags(rarity.astype(np.float32))
    weighted = counts @ scale
    if principal:
        vectors = weighted @ _principal_axes(in_train @ scale, num_dims, seed)
    else:
        vectors = _on_random_axes(weighted, num_dims, seed)
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)


def _on_random_axes(
    weighted: sparse.csr_matrix, num_dims: int, seed: int
) -> np.ndarray:
    vectors = np.empty((weighted.shape[0], num_dims), np.float32)
    for start in range(0, num_dims, _BLOCK):
        rng = np.random.default_rng([seed, start])
        axes = rng.standard_normal((NUM_BINS, _BLOCK), np.float32)
        vectors[:, start : start + _BLOCK] = (weighted @ axes)[:, : num_dims - start]
    return vectors


def _principal_axes(train: sparse.csr_matrix, num_dims: int, seed: int) -> np.ndarray:
    """The leading right singular vectors, about, [bins, num_dims]."""
    width = min(num_dims + _OVERSAMPLING, train.shape[0])
    sketch = _on_random_axes(train, width, seed)
    for _ in range(_ITERATIONS):
        basis = np.linalg.qr(sketch)[0]  # [texts, width]
        sketch = train @ (train.T @ basis)
    found = train.T @ np.linalg.qr(sketch)[0]  # [bins, width]
    values, turns = np.linalg.eigh(found.T @ found)  # ascending squares
    last = slice(None, -num_dims - 1, -1)
    lengths = np.sqrt(np.maximum(values[last], np.finfo(np.float32).tiny))
    return found @ (turns[:, last] / lengths)
