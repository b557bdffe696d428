"""TRL's environments: classes for the `environment_factory` of its trainers, as they are."""
