"""The core's own algorithms, environments and prompt sources, registered like any plugin's."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_algorithms(register: Register) -> None:
    register("grpo", "groupwise.algorithms.grpo:GRPO")
    register("dr_grpo", "groupwise.algorithms.dr_grpo:DrGRPO")
    register("dapo", "groupwise.algorithms.dapo:DAPO")
    register("gspo", "groupwise.algorithms.gspo:GSPO")
    register("gdpo", "groupwise.algorithms.gdpo:GDPO")
    register("bnpo", "groupwise.algorithms.bnpo:BNPO")
    register("cispo", "groupwise.algorithms.cispo:CISPO")
    register("sapo", "groupwise.algorithms.sapo:SAPO")
    register("luspo", "groupwise.algorithms.luspo:LUSPO")
    register("vespo", "groupwise.algorithms.vespo:VESPO")
    register("rloo", "groupwise.algorithms.rloo:RLOO")
    register("reinforce_pp", "groupwise.algorithms.reinforce_pp:ReinforcePP")
    register(
        "reinforce_pp_baseline", "groupwise.algorithms.reinforce_pp_baseline:ReinforcePPBaseline"
    )
    register("guard", "groupwise.algorithms.guard:Guard")
    register("lead", "groupwise.algorithms.lead:LEAD")
    register("dppo", "groupwise.algorithms.dppo:DPPO")
    register("gmpo", "groupwise.algorithms.gmpo:GMPO")
    register("maxrl", "groupwise.algorithms.maxrl:MaxRL")
    register("opo", "groupwise.algorithms.opo:OPO")
    register("pass_at_k", "groupwise.algorithms.pass_at_k:PassAtK")
    register("rae", "groupwise.algorithms.rae:RAE")


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
