"""From noise to data: noise levels, which steps are decisions, and denoising a batch."""
