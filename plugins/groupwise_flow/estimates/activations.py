"""Activations that training keeps: by an adapter's own formula, or counted without data."""

from groupwise_flow.estimates.counting import kept
from groupwise_flow.estimates.sampling_memory import SamplingMemory
from groupwise_flow.settings import Settings

FLOAT = 4


def activations(memory: SamplingMemory, settings: Settings) -> float:
    """Numbers kept for the backward pass of one picture; 0 if they cannot be counted.

    Counting runs the model on tensors without data, as the estimate of sampling does.
    """
    adapter = memory.adapter
    stated = adapter.activations(checkpointing=settings.gradient_checkpointing)
    if stated or adapter.device.type != "meta":
        return stated
    try:
        return kept(lambda: memory.velocity(1), adapter.models.values()) / FLOAT
    except Exception:  # code may read values, which these tensors lack
        return 0.0
