"""Config: a YAML file or a mapping made into validated objects; errors with line and suggestion."""
