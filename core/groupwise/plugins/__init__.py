"""Plugins: from the names in a configuration to classes, checked options and objects.

    load_config  ->  LoadedConfig     sections, validated by themselves; no plugin is imported
    resolve      ->  ResolvedConfig   a `Plugin` for each section that names one
    plugin.target, plugin.settings    imported and validated when first asked for, then kept
    make_part(plugin)                 the object that a run uses

All stages after loading read the same `Plugin`: what a run checks before it begins, shows, and
builds. Secrets are revealed here only, to plugins alone.
"""
