"""What the tiny models share: weights that are not at their start, and an autoencoder."""

from typing import Any

import torch
from diffusers import AutoencoderKL


def awake(model: Any) -> Any:
    """Adds noise to the weights, so that the output depends on prompt, time and latents."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model


def autoencoder(*, channels: int = 4, levels: int = 2) -> AutoencoderKL:
    """Of the class of Stable Diffusion's and FLUX's; levels: 2 ** (levels - 1) pixels a latent."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        block_out_channels=(8,) * levels,
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=channels,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.1,
        scaling_factor=1.5,
        sample_size=16,
    )
