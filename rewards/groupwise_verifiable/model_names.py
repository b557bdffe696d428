"""Names of models of transformers: what can be known of them before anything is loaded."""

from pathlib import Path


def check_model_name(name: str, *, setting: str) -> None:
    """Raises ValueError, which names the setting, where a name means a folder that holds no model.

    Whether the hub has a model of that name shows when it is loaded.
    """
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"`{setting}`: the folder {name!r} holds no model: no config.json")
    elif path.is_file():
        raise ValueError(f"`{setting}`: expected a folder or a hub name, found the file {name!r}")
    elif name.count("/") > 1 or name.startswith(("/", ".", "~")):
        raise ValueError(f"`{setting}`: the folder {name!r} does not exist")
