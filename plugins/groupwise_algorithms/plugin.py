"""Registers the variants of GRPO."""

from groupwise.hookspecs import Register, hookimpl


@hookimpl
def register_algorithms(register: Register) -> None:
    register("dr_grpo", "groupwise_algorithms.dr_grpo:DrGRPO")
    register("dapo", "groupwise_algorithms.dapo:DAPO")
    register("gspo", "groupwise_algorithms.gspo:GSPO")
    register("gdpo", "groupwise_algorithms.gdpo:GDPO")
    register("bnpo", "groupwise_algorithms.bnpo:BNPO")
    register("cispo", "groupwise_algorithms.cispo:CISPO")
    register("sapo", "groupwise_algorithms.sapo:SAPO")
    register("luspo", "groupwise_algorithms.luspo:LUSPO")
    register("vespo", "groupwise_algorithms.vespo:VESPO")
    register("rloo", "groupwise_algorithms.rloo:RLOO")
    register("reinforce_pp", "groupwise_algorithms.reinforce_pp:ReinforcePP")
    register(
        "reinforce_pp_baseline", "groupwise_algorithms.reinforce_pp_baseline:ReinforcePPBaseline"
    )
    register("guard", "groupwise_algorithms.guard:Guard")
    register("lead", "groupwise_algorithms.lead:LEAD")
    register("dppo", "groupwise_algorithms.dppo:DPPO")
    register("gmpo", "groupwise_algorithms.gmpo:GMPO")
    register("maxrl", "groupwise_algorithms.maxrl:MaxRL")
    register("opo", "groupwise_algorithms.opo:OPO")
    register("pass_at_k", "groupwise_algorithms.pass_at_k:PassAtK")
    register("rae", "groupwise_algorithms.rae:RAE")
