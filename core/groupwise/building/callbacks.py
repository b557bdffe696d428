"""Callbacks: those that a configuration names, trackers among them, built and opened."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from accelerate import Accelerator

from groupwise.building.making import make_part
from groupwise.building.parts import Parts
from groupwise.callback import Callback, RunContext
from groupwise.config.load import LoadedConfig
from groupwise.kit import processes
from groupwise.kit.copies import copied
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath


def build_callbacks(parts: Parts, accelerator: Accelerator) -> dict[KeyPath, Callback]:
    """By path of the section; on the first process only, so that a tracker is opened once."""
    return {
        plugin.path: make_part(plugin)
        for key in ("callbacks", "tracking")
        for plugin in parts.loaded.of(key)
        if accelerator.is_main_process
    }


@contextmanager
def opened(
    callbacks: Mapping[KeyPath, Callback], loaded: LoadedConfig, run: RunContext
) -> Iterator[None]:
    """Open all callbacks, and close them at the end.

    Raises UserError on all processes, with the line of the section, if one refuses to open.
    """
    with ExitStack() as stack:

        def open_all() -> None:
            for path, callback in callbacks.items():
                try:
                    callback.on_open(replace(run, settings=copied(run.settings)))
                except UserError as error:
                    raise UserError(loaded.origin.message(path, str(error))) from error
                stack.callback(callback.on_close)

        processes.first(open_all)
        yield
