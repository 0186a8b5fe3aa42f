"""Vectors of texts without any trained model: nothing to download.

Words and pairs of neighbouring words are hashed into bins with a sign, counted,
weighted by how rare they are (tf-idf, fitted on training texts), projected by fixed
Gaussian vectors and scaled to length 1. The same texts and seed give the same vectors.
"""

import hashlib
import itertools
import re
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from p2pjax.types import InputError

NUM_BINS = 2**18
_BLOCK = 20  # dimensions projected at a time: 21 MB of Gaussian numbers
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
    counts: sparse.csr_matrix, is_train: np.ndarray, num_dims: int = 300, seed: int = 0
) -> np.ndarray:
    """Vectors of length 1, or 0 where a text has no words, float32 [texts, num_dims].

    Args:
        counts: of `count_ngrams`.
        is_train: [texts] bool, on which texts the rarity of bins is measured; bins that
            none of them has count as rarest.
        num_dims: of a vector.
        seed: of the projection, 0 or more.

    Raises:
        InputError: no training text, or no dimension.
    """
    num_train = int(np.count_nonzero(is_train))
    if num_train < 1 or num_dims < 1 or seed < 0:
        raise InputError(
            "Need one training text, one dimension or more and a seed of 0 or more, "
            f"got {num_train}, {num_dims} and {seed}."
        )
    in_texts = np.asarray((counts[np.flatnonzero(is_train)] != 0).sum(0)).reshape(-1)
    rarity = np.log((1 + num_train) / (1 + in_texts)) + 1
    weighted = counts @ sparse.diags(rarity.astype(np.float32))
    vectors = np.empty((counts.shape[0], num_dims), np.float32)
    for start in range(0, num_dims, _BLOCK):
        rng = np.random.default_rng([seed, start])
        axes = rng.standard_normal((NUM_BINS, _BLOCK), np.float32)
        vectors[:, start : start + _BLOCK] = (weighted @ axes)[:, : num_dims - start]
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)
