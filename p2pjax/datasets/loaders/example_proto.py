"""Reads `tf.train.Example`, TensorFlow's record of one example, without TensorFlow.

The message in the language of protocol buffers:

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }   (entries { key = 1; value = 2; })
    Feature   { BytesList bytes_list = 1; FloatList float_list = 2;
                Int64List int64_list = 3; }           (one of them)
    *List     { repeated value = 1; }                 (numbers packed or one by one)

Every length is checked against what is left of the message before anything is read.
"""

from collections.abc import Iterator

import numpy as np

Feature = list[bytes] | np.ndarray  # strings, float32 [n] or int64 [n]


_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5  # wire types


_MAX_VARINT = 10  # bytes of a 64-bit number, seven bits in each


def parse_example(raw: bytes) -> dict[str, Feature]:
    """The features of one example by name.

    Raises:
        ValueError: this is no such message.
    """
    features: dict[str, Feature] = {}
    for message in _messages(raw):
        for entry in _messages(message):
            fields = dict(_fields(entry))  # of equal ones the last counts
            key, value = fields.get(1, b""), fields.get(2, b"")
            if not isinstance(key, bytes) or not isinstance(value, bytes):
                raise ValueError("a feature must have a name and a value")
            features[key.decode()] = _feature(value)
    return features


def _feature(raw: bytes) -> Feature:
    kinds = [(number, value) for number, value in _fields(raw) if number in (1, 2, 3)]
    if not kinds:
        return []
    kind, values = kinds[-1]
    if not isinstance(values, bytes):
        raise ValueError("a feature must be a list")
    if kind == 1:
        return list(_messages(values))
    found = [value for number, value in _fields(values) if number == 1]
    packed = b"".join(value for value in found if isinstance(value, bytes))
    if kind == 2:
        if len(packed) % 4:
            raise ValueError("floats must have four bytes each")
        return np.frombuffer(packed, "<f4").astype(np.float32, copy=False)
    single = [value for value in found if isinstance(value, int)]
    if single and packed:
        raise ValueError("numbers must be packed or not")
    if single:
        return np.array(single, np.uint64).view(np.int64)
    return _varints(packed)


def _messages(raw: bytes) -> Iterator[bytes]:
    """The values of field 1, which are of variable length."""
    for number, value in _fields(raw):
        if number == 1:
            if not isinstance(value, bytes):
                raise ValueError("a message was expected, a number found")
            yield value


def _fields(raw: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of each field of a message: bytes, or a number below 2**64."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            number, at = _varint(raw, at)
            yield tag >> 3, number
            continue
        if wire_type == _LENGTH:
            size, at = _varint(raw, at)
        elif wire_type in (_FOUR_BYTES, _EIGHT_BYTES):
            size = 4 if wire_type == _FOUR_BYTES else 8
        else:
            raise ValueError(f"no field has the wire type {wire_type}")
        if size > len(raw) - at:
            raise ValueError(f"{size} bytes must follow, found {len(raw) - at}")
        yield tag >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte, lowest first, and where it ends."""
    number = 0
    for place, byte in enumerate(raw[at : at + _MAX_VARINT]):
        number |= (byte & 127) << (7 * place)
        if byte < 128:
            if number >= 2**64:
                raise ValueError("a number must have 64 bits at most")
            return number, at + place + 1
    raise ValueError("a number must end")


def _varints(packed: bytes) -> np.ndarray:
    """All numbers of a packed list, int64 `[n]`."""
    if len(packed) == 1 and packed[0] < 128:  # as most labels: much faster
        return np.array([packed[0]], np.int64)
    bits = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(bits < 128)
    if not bits.size:
        return np.zeros(0, np.int64)
    if not ends.size or ends[-1] != bits.size - 1:
        raise ValueError("a number must end")
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if sizes.max() > _MAX_VARINT:
        raise ValueError("a number must end")
    places = np.arange(bits.size) - np.repeat(starts, sizes)
    parts = (bits & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)
