"""`tf.train.Example` without TensorFlow, against Google's own implementation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pjax.datasets.loaders.example_proto import parse_example

pytest.importorskip("tensorflow_datasets")
from tensorflow_datasets.proto import tf_example_generated_pb2 as example_pb2
from tensorflow_datasets.proto import tf_feature_generated_pb2 as feature_pb2

INT64 = st.integers(-(2**63), 2**63 - 1)
LISTS = {
    "bytes_list": (feature_pb2.BytesList, st.binary(max_size=20)),
    "float_list": (feature_pb2.FloatList, st.floats(width=32, allow_nan=False)),
    "int64_list": (feature_pb2.Int64List, INT64 | st.integers(0, 300)),
}
FEATURES = st.one_of(
    *(
        st.tuples(st.just(kind), st.lists(values, max_size=12))
        for kind, (_, values) in LISTS.items()
    )
)


def serialized(features: dict) -> bytes:
    by_name = {
        name: feature_pb2.Feature(**{kind: LISTS[kind][0](value=values)})
        for name, (kind, values) in features.items()
    }
    message = example_pb2.Example(features=feature_pb2.Features(feature=by_name))
    return message.SerializeToString()


@given(st.dictionaries(st.text(max_size=8), FEATURES, max_size=5))
def test_equals_googles(features):
    found = parse_example(serialized(features))
    assert set(found) == set(features)
    for name, (kind, values) in features.items():
        if kind == "bytes_list":
            assert found[name] == values
        else:
            dtype = np.float32 if kind == "float_list" else np.int64
            assert found[name].dtype == dtype
            np.testing.assert_array_equal(found[name], np.array(values, dtype))


@given(st.binary(max_size=60))
def test_anything_else_is_a_value_error(raw):
    try:
        found = parse_example(raw)
    except ValueError:
        return
    assert isinstance(found, dict)


GOOD = serialized({"a": ("int64_list", [1, 300, -1]), "b": ("float_list", [0.5, 2.0])})


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_damaged_bytes(place, byte):
    damaged = GOOD[:place] + bytes((byte,)) + GOOD[place + 1 :]
    try:
        parse_example(damaged)
        parse_example(GOOD[:place])
    except ValueError:
        pass


def test_numbers_that_are_not_packed():
    floats = b"\x0d\x00\x00\x00\x3f\x0d\x00\x00\x00\x40"  # twice field 1, four bytes
    ints = b"\x08\x05\x08\xac\x02"  # twice field 1, a number
    entries = [
        b"\x0a\x01f\x12" + bytes((len(floats) + 2,)) + b"\x12\x0a" + floats,
        b"\x0a\x01i\x12" + bytes((len(ints) + 2,)) + b"\x1a\x05" + ints,
    ]
    inner = b"".join(b"\x0a" + bytes((len(entry),)) + entry for entry in entries)
    raw = b"\x0a" + bytes((len(inner),)) + inner
    theirs = example_pb2.Example.FromString(raw).features.feature
    found = parse_example(raw)
    assert found["f"].tolist() == list(theirs["f"].float_list.value) == [0.5, 2.0]
    assert found["i"].tolist() == list(theirs["i"].int64_list.value) == [5, 300]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", "4294967295 bytes must follow, found 0"),
        (b"\x0a\x05abc", "5 bytes must follow, found 3"),
        (b"\xff" * 11, "a number must end"),
        (b"\x80", "a number must end"),
        (b"\x0b", "wire type 3"),
        (b"\x08\x01", "a message was expected, a number found"),
    ],
)
def test_lengths_are_checked(raw, message):
    with pytest.raises(ValueError, match=message):
        parse_example(raw)
