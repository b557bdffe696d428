"""Activations: how much of a pass is kept for the backward pass, as measured."""


def of_transformer(*, width: int, layers: int, tokens: int, checkpointing: bool) -> float:
    """Numbers that a transformer keeps for the backward pass of one picture; an estimate.

    width: of the hidden states; tokens: of picture and prompt together.

    A layer keeps for each token, in its widths, modulated inputs, attention's projections, norms
    and output, and the two halves of an MLP four times as wide. Checkpointing keeps the inputs of
    all layers and the rest of one.
    """
    kept = 26.0
    if checkpointing:
        kept = 1.5 + kept / layers
    return tokens * layers * kept * width
