"""ResolvedConfig: a configuration with the plugins that its sections name."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from groupwise import registry
from groupwise.config.load import LoadedConfig
from groupwise.config.plugin_sections import plugin_sections
from groupwise.config.sections import HTML
from groupwise.kit import progress
from groupwise.kit.section import KeyPath, PluginSection
from groupwise.plugins.plugin import Plugin


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(LoadedConfig):
    """A configuration with what its sections name, by their paths; policies and samplers are last,
    since they take longest to import."""

    plugins: Mapping[KeyPath, Plugin]

    def check(self) -> None:
        """Import every plugin, and check its options; builds nothing.

        Raises UserError for the first that is wrong.
        """
        for plugin in self.plugins.values():
            if plugin.passed is None:
                with progress.doing(f"importing {plugin.section.name}"):
                    _ = plugin.settings

    def of(self, key: str) -> list[Plugin]:
        """The plugins of a list of sections, such as `callbacks`, in order."""
        return [plugin for path, plugin in self.plugins.items() if path[0] == key]

    def concealed(self) -> "ResolvedConfig":
        """The same with all options wrapped that a plugin's `Config` declares secret, as it is
        written. (What a key's name tells is wrapped when a configuration is loaded.)

        Sections of Python objects passed in place of names stay as they are.
        """
        config = self.config
        for path, plugin in self.plugins.items():
            if plugin.passed is None and plugin.section.options:
                config = _changed(config, path, plugin.concealed)
        return replace(self, config=config)


def resolve(loaded: LoadedConfig) -> ResolvedConfig:
    """The configuration with its plugins, of which none is imported yet; without the default report
    if no installed plugin registers it, which is not an error."""
    context = {
        "folder": loaded.folder,
        "begun_in": loaded.begun_in,
        "ahead": bool(loaded.config.train.ahead),
    }
    plugins = {
        path: Plugin(
            kind=kind,
            path=path,
            section=section,
            origin=loaded.origin,
            context=context,
            passed=loaded.objects.get(path),
            passed_options={
                str(at[-1]): each for at, each in loaded.objects.items() if at[:-1] == path
            },
        )
        for kind, path, section in plugin_sections(loaded.config)
        if path in loaded.objects or not _is_missing_default(section, path)
    }
    known = {each.name: getattr(loaded, each.name) for each in fields(LoadedConfig)}
    return ResolvedConfig(**known, plugins=plugins)


def _is_missing_default(section: PluginSection, path: KeyPath) -> bool:
    if path[0] != "reports" or section != HTML:
        return False
    return not registry.installed().named("reports", HTML.name)


def _changed(section: Any, path: KeyPath, options: Mapping[str, Any]) -> Any:
    """A section, or a list of them, with other options where `path` leads."""
    if not path:
        return section.model_copy(update=options)
    key, rest = path[0], path[1:]
    if isinstance(section, list):
        return [_changed(x, rest, options) if i == key else x for i, x in enumerate(section)]
    return section.model_copy(
        update={str(key): _changed(getattr(section, str(key)), rest, options)}
    )
