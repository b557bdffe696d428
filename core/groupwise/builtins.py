"""The core's own algorithm, environments and prompt sources, registered like any plugin's."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_algorithms(register: Register) -> None:
    register("grpo", "groupwise.algorithms.grpo:GRPO")


@hookimpl
def register_environments(register: Register) -> None:
    register("single", "groupwise.environments.single:Single")
    register("pool", "groupwise.environments.pool:Pool")
    register("chain", "groupwise.environments.chain:Chain")


@hookimpl
def register_prompts(register: Register) -> None:
    register("rows", "groupwise.prompts.rows:Rows")
    register("dataset", "groupwise.prompts.dataset:Dataset", extra="data")


@hookimpl
def register_objects(register: Register) -> None:
    for name in (
        "pandas.DataFrame",
        "pandas.core.frame.DataFrame",
        "datasets.arrow_dataset.Dataset",
        "datasets.dataset_dict.DatasetDict",
    ):
        register(name, "groupwise.prompts.stands:DATA", extra="data")
