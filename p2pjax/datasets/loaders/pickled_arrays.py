"""Names, numbers and arrays of numbers out of a pickle, which is not run.

A pickle is a program: it can call anything, and a few bytes of it can take all memory.
Of its instructions only those are followed here that Python 2 and 3 write for
dictionaries of arrays and lists, and what they call is stood in for.
"""

import pickletools
import re
from typing import Any, NamedTuple

import numpy as np

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}


_SPELLED = {
    *("BININT", "BININT1", "BININT2", "LONG1"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}


_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


_NUMBERS = re.compile("[uif][1248]")  # dtypes


class _Function(NamedTuple):
    """What a pickle of arrays calls."""

    module: str
    name: str


_ENCODE = _Function("_codecs", "encode")
_EMPTY = _Function("numpy._core.multiarray", "_reconstruct")
_DTYPE = _Function("numpy", "dtype")
_KNOWN = {_ENCODE, _EMPTY, _DTYPE, _Function("numpy", "ndarray")}


class _Dtype:
    """Becomes one of numbers with its state."""

    def __init__(self, code: Any):
        code = code.decode() if isinstance(code, bytes) else code
        if not isinstance(code, str) or not _NUMBERS.fullmatch(code):
            raise ValueError("an array must be of numbers")
        self.numbers = np.dtype(code)

    def build(self, state: Any) -> None:
        if state[1] in (">", b">"):
            self.numbers = self.numbers.newbyteorder(">")


class _Array:
    """Becomes an array with its state."""

    values: np.ndarray | None = None

    def build(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise ValueError("an array must have a dtype and bytes")
        flat = np.frombuffer(raw, dtype.numbers)
        self.values = flat.reshape(shape, order="F" if is_fortran else "C")


def read_pickle(raw: bytes | bytearray) -> Any:
    """The dictionary, list, number, name or array that a pickle holds.

    Arrays are found in a dictionary only; strings of Python 2 are bytes.

    Raises:
        ValueError: it holds something else, or is cut off.
    """
    try:
        found = _follow(bytes(raw))
    except (AttributeError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"its instructions make no sense ({error})") from error
    if not isinstance(found, dict):
        return found
    return {k: v.values if isinstance(v, _Array) else v for k, v in found.items()}


def _follow(raw: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []  # where the items of tuples, lists and dictionaries begin
    memo: dict[int, Any] = {}
    bytes_left = len(raw)  # of strings that are made of others

    def since_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    value: Any
    for opcode, value, _ in pickletools.genops(raw):
        name = opcode.name
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            return stack.pop()
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _SPELLED:
            stack.append(value)
        elif name in ("BINSTRING", "SHORT_BINSTRING"):
            stack.append(value.encode("latin-1"))
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name in _TUPLES:
            items = [stack.pop() for _ in range(_TUPLES[name])]
            stack.append(tuple(items[::-1]))
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = [stack.pop()] if name == "APPEND" else since_mark()
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else since_mark()
            for key, item in zip(items[::2], items[1::2], strict=True):
                if not isinstance(key, bytes | str):
                    raise ValueError("a dictionary must have names as keys")
                stack[-1][key] = item
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            named = value.split(" ") if value else [stack.pop(-2), stack.pop()]
            stack.append(_known(*named))
        elif name == "REDUCE":
            arguments, function = stack.pop(), stack.pop()
            if function == _ENCODE:
                bytes_left -= len(arguments[0])
                if arguments[1] not in ("latin1", b"latin1") or bytes_left < 0:
                    raise ValueError("a string must be spelled out in latin1")
                stack.append(arguments[0].encode("latin-1"))
            elif function in (_EMPTY, _DTYPE):
                stack.append(_Array() if function == _EMPTY else _Dtype(arguments[0]))
            else:
                raise ValueError("an array must be made as numpy does")
        elif name == "BUILD":
            state = stack.pop()
            stack[-1].build(state)
        else:
            raise ValueError(f"no array of numbers needs {name}")
    raise ValueError("it does not end")


def _known(module: Any, name: Any) -> _Function:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError("a function must have a name")
    module = module.replace("numpy.core", "numpy._core")  # its name before 2.0
    function = _Function(module, name)
    if function not in _KNOWN:
        raise ValueError(
            f"it must hold arrays of numbers only, found {module}.{name}, which is "
            "never loaded"
        )
    return function
