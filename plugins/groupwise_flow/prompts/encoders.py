"""Encoders: the models that only encode prompts, and where they are between encodings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from groupwise.kit.errors import UserError
from groupwise_flow.adapter import Adapter
from groupwise_flow.files.loading import load_missing
from groupwise_flow.settings import Settings


class Encoders:
    """The pipeline's models named in `Adapter.encoders`, placed as `policy.encoders` says.

    resident: on the device; offload: in CPU memory, on the device only while prompts are encoded;
    cached: the same until `drop`, then nowhere.
    """

    def __init__(self, adapter: Adapter, settings: Settings) -> None:
        self.adapter, self.settings = adapter, settings
        self._dropped: tuple[str, ...] = ()

    @property
    def models(self) -> Mapping[str, nn.Module]:
        """Those in memory, by their names in the pipeline."""
        components = self.adapter.pipeline.components
        named = {name: components.get(name) for name in self.adapter.encoders}
        return {name: part for name, part in named.items() if isinstance(part, nn.Module)}

    @property
    def away(self) -> frozenset[str]:
        """Names of the models that do not move to the device with the others."""
        return frozenset() if self.settings.encoders == "resident" else frozenset(self.models)

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """The context in which they are on the device."""
        moved = [self.models[name] for name in self.away]
        for model in moved:
            model.to(device)
        try:
            yield
        finally:
            for model in moved:
                model.to("cpu")

    def check_present(self, rows: object) -> None:
        """Raise UserError if they were dropped; rows: those to encode, for the message."""
        if self._dropped:
            raise UserError(
                f"policy.encoders: cached encodes all prompts before the first step and then drops "
                f"the text encoders, and this prompt was not among them: {str(rows)[:200]}; set "
                f"policy.encoders=offload for prompts that are made during the run, or given to "
                f"`groupwise sample`"
            )

    def drop(self) -> None:
        """Free their memory."""
        self._dropped = tuple(self.models)
        self._register(dict.fromkeys(self._dropped))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """The context in which dropped models are in CPU memory, read again to save the pipeline.

        Raises UserError if they cannot be loaded.
        """
        if not self._dropped:
            yield
            return
        self._register(load_missing(self.adapter, self.settings, self._dropped))
        try:
            yield
        finally:
            self._register(dict.fromkeys(self._dropped))

    def _register(self, models: Mapping[str, nn.Module | None]) -> None:
        # Not setattr, after which the saved model_index.json would not name them.
        self.adapter.pipeline.register_modules(**models)
