"""Single step: the check of algorithms that train one denoising step of each picture."""

from typing import Any

from groupwise.kit.errors import UserError


def check_single(name: str, policy_config: Any) -> None:
    """Raise UserError unless the policy's window has one step."""
    window = getattr(policy_config, "window", None)
    if window is not None and (count := policy_config.max_decisions) != 1:
        raise UserError(
            f"algorithm: {name} trains one denoising step of each picture, and the policy's window "
            f"has {count}; set policy.window: {{kind: random, size: 1}}"
        )
