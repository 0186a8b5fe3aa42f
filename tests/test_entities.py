"""Entities in labels: spans, counts, F1, and the same numbers as seqeval."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pjax.datasets import label_sets
from p2pjax.tasks import ner_metrics
from p2pjax.types import InputError

TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER", "I-ORG")
KNOWN = label_sets.label_set(TAGS)


ROWS, LENGTH = 3, 6


def numbers(sentences):
    """Tags as labels, padded by 0."""
    table = np.zeros((ROWS, LENGTH), np.int32)
    for row, tags in enumerate(sentences):
        table[row, : len(tags)] = [KNOWN.names.index(tag) for tag in tags]
    return table


def chunks(tags):
    """Entities of one sentence, tag by tag: {(type, start, stop)}."""
    found, start, kind = set(), None, None
    for place, tag in enumerate([*tags, "O"]):
        here = tag[2:] if tag[:2] in ("B-", "I-") else None
        if start is not None and (here != kind or tag[0] == "B"):
            found.add((kind, start, place))
            start = kind = None
        if here is not None and start is None:
            start, kind = place, here
    return found


def f1(predicted, actual):
    """By sets, type after type."""
    mine = [{(row, *c) for c in chunks(tags)} for row, tags in enumerate(predicted)]
    real = [{(row, *c) for c in chunks(tags)} for row, tags in enumerate(actual)]
    mine, real = set().union(*mine), set().union(*real)
    scores = []
    for kind in sorted({c[1] for c in mine | real}):
        a = {c for c in mine if c[1] == kind}
        b = {c for c in real if c[1] == kind}
        precision = len(a & b) / len(a) if a else 0
        recall = len(a & b) / len(b) if b else 0
        both = precision + recall
        scores.append(2 * precision * recall / both if both else 0)
    return scores


@jax.jit
def scored(predicted, actual):
    return ner_metrics.macro_f1(ner_metrics.found(predicted, actual, KNOWN))


def macro(predicted, actual):
    return [float(value) for value in scored(numbers(predicted), numbers(actual))]


@pytest.mark.parametrize(
    "predicted, actual, total, weight",
    [
        ([["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "O"]], 1, 1),
        ([["B-PER", "O", "O"]], [["B-PER", "I-PER", "O"]], 0, 1),  # too short
        ([["B-PER", "B-PER", "O"]], [["B-PER", "I-PER", "O"]], 0, 1),  # cut in two
        ([["I-PER", "I-PER", "O"]], [["B-PER", "I-PER", "O"]], 1, 1),  # I- opens too
        ([["B-LOC", "I-LOC", "O"]], [["B-PER", "I-PER", "O"]], 0, 2),  # another type
        ([["O", "O", "O"]], [["O", "O", "O"]], 0, 0),
        # LOC: 1 of 2 predicted, 1 of 1 there, F1 2/3; PER: right; ORG: not found
        (
            [["B-LOC", "O", "B-LOC"], ["B-PER", "O", "O"]],
            [["B-LOC", "O", "I-ORG"], ["B-PER", "O", "O"]],
            2 / 3 + 1,
            3,
        ),
    ],
)
def test_vectors(predicted, actual, total, weight):
    assert macro(predicted, actual) == pytest.approx([total, weight])


def test_special_labels_count_as_outside_and_padding_is_not_looked_at():
    actual = np.array([[2, 4, 1, 3, 0, 0]])
    predicted = np.array([[4, 4, 3, 2, 4, 7]])
    # The entity at [CLS] joins none: B- begins a new one. Nothing counts after [SEP].
    counts = ner_metrics.found(predicted, actual, KNOWN)
    kinds = list(KNOWN.types)
    assert counts.right[kinds.index("LOC")] == 1
    assert counts.predicted.sum() == 2
    assert counts.actual.sum() == 1


sentence = st.lists(st.sampled_from(TAGS), min_size=LENGTH, max_size=LENGTH)
sentences = st.lists(sentence, min_size=ROWS, max_size=ROWS)


@given(predicted=sentences, actual=sentences)
def test_counts_equal_those_of_sets(predicted, actual):
    scores = f1(predicted, actual)
    assert macro(predicted, actual) == pytest.approx([sum(scores), len(scores)])


@given(predicted=sentences, actual=sentences)
def test_the_same_as_seqeval(predicted, actual):
    seqeval = pytest.importorskip("seqeval.metrics", reason="seqeval is the reference")
    total, weight = macro(predicted, actual)
    if weight:
        expected = seqeval.f1_score(actual, predicted, average="macro", zero_division=0)
        assert total / weight == pytest.approx(expected)


def test_label_sets():
    few_nerd = label_sets.label_set([f"I-{kind}" for kind in "abcdefgh"])
    assert len(few_nerd.names) == 12
    assert not few_nerd.begins.any()
    conll = label_sets.label_set([f"{b}-{kind}" for b in "IB" for kind in "wxyz"])
    assert conll.names[:6] == ("[PAD]", "O", "[CLS]", "[SEP]", "B-w", "I-w")
    assert conll.type_of.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    with pytest.raises(InputError, match="O, B-type or I-type, got PER"):
        label_sets.label_set(["O", "PER"])
