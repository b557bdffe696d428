"""Activations that training keeps: by an adapter's own formula, or counted without data."""

from groupwise_flow.estimates.counting import kept
from groupwise_flow.estimates.sampling import SamplingMemory
from groupwise_flow.settings import Settings

FLOAT = 4


def activations(memory: SamplingMemory, settings: Settings) -> float:
    """Numbers kept for the backward pass of one picture; 0 if neither is possible.

    Counting runs the model on tensors without data, as the estimate of sampling does; gradients of
    weights, which the estimate has by themselves, are left out.
    """
    adapter = memory.adapter
    stated = adapter.activations(checkpointing=settings.gradient_checkpointing)
    if stated or adapter.device.type != "meta":
        return stated
    recomputed = settings.gradient_checkpointing
    try:
        size = kept(lambda: memory.velocity(1), recomputed=recomputed)
    except Exception:  # code may read values, which these tensors lack
        return 0.0
    if recomputed:
        for part in adapter.models.values():
            size -= sum(FLOAT * p.numel() for p in part.parameters() if p.requires_grad)
            part.zero_grad()
    return max(size, 0) / FLOAT
