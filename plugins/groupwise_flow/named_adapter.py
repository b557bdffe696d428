"""NamedAdapter: the adapter that a configuration names, with its options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError, ValidationInfo

from groupwise.kit.errors import UserError, did_you_mean
from groupwise.kit.section import PluginSection, mistake_at
from groupwise.registry import installed
from groupwise_flow.adapter import Adapter


@dataclass(frozen=True)
class NamedAdapter:
    """An adapter class, and its `Config` with the options that were set."""

    kind: type[Adapter]
    options: Any


def _named(value: Any, info: ValidationInfo) -> Any:
    """Of a registered name, `module:attribute`, a class, or a section with `name` and options.

    Raises an error that points to the option that is wrong.
    """
    if value is None or isinstance(value, NamedAdapter):
        return value
    section = dict(value) if isinstance(value, Mapping) else {"name": value}
    kind = section.pop("name", None)
    if isinstance(kind, str):
        kind = installed().load("adapters", kind)
    if not isinstance(kind, type) or not issubclass(kind, Adapter):
        raise UserError(f"expected a subclass of groupwise_flow.adapter.Adapter, found {value!r}")
    try:
        return NamedAdapter(kind, kind.Config.model_validate(section, context=info.context))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = f"{first['msg'][:1].lower()}{first['msg'][1:]}"
        if first["type"] == "extra_forbidden":
            known = sorted(kind.Config.model_fields)
            close = did_you_mean(str(first["loc"][-1]), known)
            known_names = ", ".join(known) or "none"
            problem = (
                f"not an option of {kind.__name__}{close or f'; its options are {known_names}'}"
            )
        elif first["type"] == "missing":
            problem = "missing, it has no default"
        raise mistake_at(first["loc"], problem) from None


AdapterOption = Annotated[
    NamedAdapter, BeforeValidator(_named, json_schema_input_type=str | PluginSection)
]
"""The option `policy.adapter`."""
