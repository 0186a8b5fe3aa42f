"""What one agent has to learn."""

from p2pjax.tasks import losses
from p2pjax.tasks._classification import classification
from p2pjax.tasks._encoder_tasks import masked_token, tagging
from p2pjax.tasks._lora import lora, lora_merged, lora_residual
from p2pjax.tasks._next_token import next_token
from p2pjax.tasks.network import Network
from p2pjax.tasks.task import Task

__all__ = [
    "Network",
    "Task",
    "classification",
    "lora",
    "lora_merged",
    "lora_residual",
    "losses",
    "masked_token",
    "next_token",
    "tagging",
]
