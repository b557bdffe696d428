"""check_adapter: check an adapter against a pipeline, by the laws of its base class."""

from pkgutil import resolve_name
from typing import Any


def check_adapter(adapter_class: type, pipeline: Any, **options: Any) -> None:
    """Check an adapter on a pipeline, preferably a tiny one with random weights.

    The laws are those of the plugin that uses the adapter: its base class names, as `laws`, the
    "module:function" that checks them. Raises AssertionError, which names the law that is broken,
    and TypeError for a class without `laws`.

    options: passed to that function; for images see `groupwise_flow.testing.check_adapter`.
    """
    laws = getattr(adapter_class, "laws", None)
    if not isinstance(laws, str):
        raise TypeError(
            f"check_adapter: {adapter_class.__name__} has no `laws`; an adapter is a subclass of "
            f"the base class of the plugin that uses it, for images groupwise_flow.adapter.Adapter"
        )
    resolve_name(laws)(adapter_class, pipeline, **options)
