"""Passes of the model: velocities with guidance, latents from noise, log-probs of decisions."""
