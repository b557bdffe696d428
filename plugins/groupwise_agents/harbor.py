"""Harbor: prompts from a folder of tasks in the format of that name."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from groupwise.kit.errors import UserError
from groupwise_sandbox.harbor import task_of


class HarborTasks:
    """The instructions of a folder of tasks in Harbor's format; `task` is the path of each.

    Tasks whose image would have to be built are left out, and counted in a note.
    """

    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")

        folder: str = Field(description="with a folder for each task")

    def __init__(self, config: Config) -> None:
        folders = sorted(each.parent for each in Path(config.folder).glob("*/task.toml"))
        self.rows, refused = list[dict[str, Any]](), list[str]()
        for folder in folders:
            try:
                self.rows.append({"prompt": task_of(folder).instruction, "task": str(folder)})
            except ValueError as error:
                refused.append(f"{folder.name}: {error}")
        if not self.rows:
            why = f" that can be played: {refused[0]}" if refused else ""
            raise UserError(f"prompts: {config.folder!r} has no task of Harbor's format{why}")
        count = f"{len(refused)} of {len(folders)} tasks are left out"
        self.notes = [f"{count}, the first since {refused[0]}"] if refused else []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]
