"""check_adapter: an adapter against the pipeline it is for, by the laws of its own base class."""

from typing import Any


def check_adapter(adapter_class: type, pipeline: Any, **options: Any) -> None:
    """Check an adapter on a pipeline, best a tiny one of random weights.

    What an adapter owes is known to the plugin whose adapters these are: its base class brings the
    laws as a classmethod `check(pipeline, **options)`. Raises AssertionError, which names the law
    that is broken, and TypeError for a class without any.

    options: of those laws; for images `rows`, `height`, `width` and `prompt_tokens`.
    """
    check = getattr(adapter_class, "check", None)
    if not callable(check):
        raise TypeError(
            f"check_adapter: {adapter_class.__name__} has no `check`; an adapter is a subclass of "
            f"the base class of the plugin that uses it, for images groupwise_flow.adapter.Adapter"
        )
    check(pipeline, **options)
