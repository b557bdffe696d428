"""check_adapter: check an adapter against a pipeline, by the laws of its base class."""

from typing import Any


def check_adapter(adapter_class: type, pipeline: Any, **options: Any) -> None:
    """Check an adapter on a pipeline, preferably a tiny one with random weights.

    The laws are those of the plugin that uses the adapter: its base class has a classmethod
    `check(pipeline, **options)`. Raises AssertionError, which names the law that is broken, and
    TypeError for a class without `check`.

    options: passed to `check`; for images `rows`, `height`, `width` and `prompt_tokens`.
    """
    check = getattr(adapter_class, "check", None)
    if not callable(check):
        raise TypeError(
            f"check_adapter: {adapter_class.__name__} has no `check`; an adapter is a subclass of "
            f"the base class of the plugin that uses it, for images groupwise_flow.adapter.Adapter"
        )
    check(pipeline, **options)
