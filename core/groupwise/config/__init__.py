"""Config: a YAML file or a mapping to validated objects; errors with line and suggestion."""
