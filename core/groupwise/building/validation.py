"""Validation: what is wrong with a configuration, before there is a file of it."""

from contextlib import closing
from pathlib import Path

from groupwise import registry
from groupwise.building.making import make_source
from groupwise.config.load import LoadedConfig, load_text
from groupwise.config.plugin_sections import plugin_sections
from groupwise.kit.errors import UserError
from groupwise.plugins.resolved import resolve


def validate(text: str, path: Path, *, own_reward: bool) -> None:
    """Raise UserError for what a run of this configuration would refuse without its weights.

    Extras that are not installed are named in one command. A data set of the hub is not downloaded,
    and nothing is checked that needs its rows.

    path: the file that the text is meant for; relative paths begin in its folder. own_reward:
    whether it names a reward that may not fit the rest; without one only prompts are built, which
    takes a fifth of the time, since it needs no torch.
    """
    loaded = load_text(text, path)
    _check_extras(loaded)
    resolved, prompts = resolve(loaded), loaded.config.prompts
    is_there = "path" not in prompts.options or (loaded.folder / prompts.options["path"]).exists()
    if not own_reward:
        if is_there:
            make_source(resolved)
        return
    from groupwise.building.build import build_parts  # imports torch
    from groupwise.building.policies import check_kinds

    resolved.check()
    if is_there:
        with closing(build_parts(resolved)) as parts:
            check_kinds(parts)


def validate_registered(text: str, path: Path) -> None:
    """Raise UserError for a section or an option that is wrong, without importing what the text
    names as `module:attribute`, which may run somebody's script.

    path: as of `validate`.
    """
    loaded = load_text(text, path)
    _check_extras(loaded)
    for plugin in resolve(loaded).plugins.values():
        if ":" not in plugin.section.name:
            _ = plugin.settings


def _check_extras(loaded: LoadedConfig) -> None:
    installed, missing = registry.installed(), dict[str, set[str]]()
    for kind, _, section in plugin_sections(loaded.config):
        for entry in installed.named(kind, section.name):
            if registry.missing_requirements(entry):
                missing.setdefault(entry.distribution, set()).add(str(entry.extra))
    if missing:
        packages = [f"'{name}[{','.join(sorted(extras))}]'" for name, extras in missing.items()]
        command = f"pip install {' '.join(packages)}"
        raise UserError(f"this run needs extras that are not installed: {command}")
