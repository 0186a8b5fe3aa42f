"""Bytes that a device receives from others, counted in a compiled program.

Which collectives there are is decided by XLA's partitioner, the same for all platforms,
but not visible before it. So the program is compiled for virtual CPU devices, and its
text is counted. A loop counts as often as XLA knows that it runs, else once.
"""

import math
import re

_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}
_RECEIVED = {  # of D devices, as a part of the result's bytes, in a ring
    "all-gather": lambda d: (d - 1) / d,
    "all-reduce": lambda d: 2 * (d - 1) / d,
    "all-to-all": lambda d: (d - 1) / d,
    "collective-permute": lambda d: 1,
    "reduce-scatter": lambda d: d - 1,
}


def received_bytes(text: str, num_devices: int) -> float:
    """Of one device in one run of a program.

    Args:
      text: of `compiled.as_text()`.
      num_devices: of the mesh.
    """
    computations: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        opened = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if opened:
            name = opened[2]
            entry = name if opened[1] else entry
            computations[name] = []
        elif name:
            computations[name].append(line)
    found: dict[str, float] = {}

    def of(name: str) -> float:
        if name not in found:
            found[name] = sum(_of_line(line) for line in computations.get(name, ()))
        return found[name]

    def _of_line(line: str) -> float:
        made = re.search(r"= (.*?) ([a-z\-]+)\(", line)
        if made is None:
            return 0
        kind = made[2].removesuffix("-start")
        if kind in _RECEIVED:
            size = _bytes(made[1])
            if made[2].endswith("-start") and kind in ("all-gather",):
                size /= 1 + 1 / num_devices  # its operand is listed beside its result
            return size * _RECEIVED[kind](num_devices)
        if kind == "while":
            turns = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            body = re.search(r"body=%?([\w.\-]+)", line)
            assert body is not None
            return of(body[1]) * (int(turns[1]) if turns else 1)
        if kind == "conditional":
            listed = re.search(r"branch_computations=\{(.*?)\}", line)
            names = (
                re.findall(r"%?([\w.\-]+)", listed[1])
                if listed
                else re.findall(r"(?:true|false)_computation=%?([\w.\-]+)", line)
            )
            return max(of(name) for name in names)
        called = re.findall(r"(?:calls|to_apply)=%?([\w.\-]+)", line)
        return sum(of(name) for name in called)

    return of(entry)


def _bytes(shape: str) -> float:
    total = 0.0
    for kind, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shape):
        digits = re.sub(r"\D", "", kind) or "0"
        bits = _BITS.get(kind, int(digits))
        total += math.prod(int(s) for s in sizes.split(",") if s) * bits / 8
    return total
