"""Validation: what is wrong with a configuration, before there are weights or a file of it."""

from contextlib import closing
from pathlib import Path

from groupwise import registry
from groupwise.config.load import LoadedConfig, load_text
from groupwise.config.plugin_sections import plugin_sections
from groupwise.kit.errors import UserError


def validate(text: str, path: Path) -> None:
    """Raise UserError for what a run of this configuration would refuse without its weights.

    Extras that are not installed are named in one command. A data set of the hub is not downloaded,
    and nothing is checked that needs its rows.

    path: the file that the text is meant for; relative paths begin in its folder.
    """
    loaded = load_text(text, path)
    _check_extras(loaded)
    from groupwise.building.build import build_parts  # imports torch
    from groupwise.building.policies import check_kinds
    from groupwise.plugins.resolved import resolve

    resolved, prompts = resolve(loaded), loaded.config.prompts
    resolved.check()
    if "path" not in prompts.options or (loaded.folder / prompts.options["path"]).exists():
        with closing(build_parts(resolved)) as parts:
            check_kinds(parts)


def validate_registered(text: str, path: Path) -> None:
    """Raise UserError for a section or an option that is wrong, without importing what the text
    names as `module:attribute`, which may run somebody's script.

    path: as of `validate`.
    """
    loaded = load_text(text, path)
    _check_extras(loaded)
    from groupwise.plugins.resolved import resolve

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
