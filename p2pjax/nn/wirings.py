"""Which cells lie along which axes of the parameters, for the package's networks."""

import flax.linen as nn

from p2pjax.nn import batch_norm_cnn, cnn, encoder, gru, lstm, mlp
from p2pjax.types import Wiring


def wiring_of(network: object) -> Wiring | None:
    """The wiring of a network of this package; None for any other.

    >>> wiring_of(mlp.MLP((3, 2)))["layer_2/kernel"]
    (1, 2)
    """
    if not isinstance(network, nn.Module):
        return None
    if isinstance(network, mlp.MLP):
        return mlp.wiring(len(network.features))
    if isinstance(network, cnn.CNN):
        return cnn.wiring(network)
    if isinstance(network, batch_norm_cnn.BatchNormCNN):
        return batch_norm_cnn.wiring(network)
    if isinstance(network, gru.NextWord):
        return gru.wiring(network)
    if isinstance(network, lstm.SequenceClassifier):
        return lstm.wiring(network)
    if isinstance(network, encoder.TokenModel):
        return encoder.wiring(network)
    return None
