"""Activations saved for the backward pass, as measured on transformers."""


def of_transformer(*, width: int, layers: int, tokens: int, checkpointing: bool) -> float:
    """Estimate of the numbers saved for the backward pass of one picture.

    width: of the hidden states; tokens: of picture and prompt together.

    tokens * layers * 26 * width: per token and layer, in units of width, modulated inputs, the
    attention's projections, norms and output, and both halves of an MLP of 4 * width. Checkpointing
    saves the inputs of all layers, and all of one layer: 1.5 + 26 / layers instead of 26.
    """
    kept = 26.0
    if checkpointing:
        kept = 1.5 + kept / layers
    return tokens * layers * kept * width
