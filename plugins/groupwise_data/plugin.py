"""Registers the prompt source of data sets, and the tables that stand for it in Python."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_prompts(register: Register) -> None:
    register("dataset", "groupwise_data.dataset:Dataset", extra="data")


@hookimpl
def register_objects(register: Register) -> None:
    for name in (
        "pandas.DataFrame",
        "pandas.core.frame.DataFrame",
        "datasets.arrow_dataset.Dataset",
        "datasets.dataset_dict.DatasetDict",
    ):
        register(name, "groupwise_data.stands:DATA", extra="data")
