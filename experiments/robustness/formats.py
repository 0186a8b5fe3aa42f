"""Formats of messages by name."""

from collections.abc import Mapping
from typing import NamedTuple

from p2pjax.exchange.channel import PERFECT, Channel, qsgd, quantize, sign, top_k


class Format(NamedTuple):
    """How messages travel: of D-PSGD, or the compression of CHOCO-SGD."""

    channel: Channel
    is_choco: bool = False


FORMATS: Mapping[str, Format] = {
    "exact": Format(PERFECT),
    "half": Format(quantize(16)),
    "uniform8": Format(quantize(8)),
    "qsgd15": Format(qsgd(15)),
    "top_tenth": Format(top_k(0.1)),
    "choco_top_hundredth": Format(top_k(0.01), is_choco=True),
    "choco_sign": Format(sign(), is_choco=True),
    "choco_qsgd15": Format(qsgd(15, biased=True), is_choco=True),
}
