"""The names of reasoning-gym's tasks."""

import difflib
from importlib.util import find_spec


def task_names() -> list[str]:
    """Returns the names of reasoning-gym's tasks; ValueError if it is not installed."""
    if find_spec("reasoning_gym") is None:
        raise ValueError("reasoning_gym tasks need reasoning-gym: pip install 'groupwise[llm]'")
    import reasoning_gym.factory  # an extra, and slow to import

    return sorted(reasoning_gym.factory.DATASETS)


def task_home(task: str) -> str:
    """Returns the name of the module that defines a task, reasoning-gym's or the user's own."""
    import reasoning_gym.factory  # an extra, and slow to import

    home = str(reasoning_gym.factory.DATASETS[task][0].__module__)
    if home == "__main__":
        raise ValueError(
            f"the task {task!r} is defined in __main__, which workers cannot import: define it in "
            "a module of its own"
        )
    return home


def check_task(task: object) -> str:
    """Returns the name if there is such a task; else a ValueError names the closest ones."""
    names = task_names()
    if task in names:
        return str(task)
    near = difflib.get_close_matches(str(task), names, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has: {', '.join(names)}"
    raise ValueError(f"reasoning-gym has no task {task!r}; {hint}")
