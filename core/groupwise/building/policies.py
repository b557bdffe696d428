"""Policies: those of a run and their teachers, with their weights on this process's device."""

from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from groupwise.building.making import make_part
from groupwise.building.parts import Parts
from groupwise.config.learners import SOLE
from groupwise.config.load import LoadedConfig
from groupwise.config.sections import RunConfig
from groupwise.kit import processes, progress
from groupwise.kit.errors import UserError
from groupwise.kit.section import KeyPath
from groupwise.plugins.build import check_options
from groupwise.plugins.targets import load_target
from groupwise.policy import Policy


def build_policies(parts: Parts, accelerator: Accelerator) -> dict[str, Policy]:
    """The policies with their weights on this process's device, by label; checks the prompts."""
    config = parts.config
    policies = {}
    for label, learning in config.learners.items():
        kind, settings = kind_and_settings(parts.loaded, (*learning.path, "policy"))
        parts.algorithms[label].check(settings)
        if isinstance(kind, type) and settings is not None:
            parts.check_tools(label, kind, settings)
        # Only initialisation (of adapters, say) draws from the global generators.
        set_seed(config.seed)
        policies[label] = make_part(parts.loaded, (*learning.path, "policy"))
    parts.check_policies(policies)
    receivers, opening = parts.players.receivers, parts.players.opening
    for label, policy in policies.items():
        read = parts.named | policy.shown if label in parts.players.judged else frozenset()
        policy.prepare(outputs=parts.algorithms[label].outputs, facts=policy.optional_facts & read)
        with progress.doing("the policy" if label == SOLE else f"policy {label!r}"):
            _place(policy, config, accelerator)
    for label, policy in policies.items():
        with progress.doing("checking prompts"):
            policy.check_prompts(parts.rows() if label in receivers else ())
    for prompts in (parts.prompts, parts.evaluation_prompts):
        prompts.skips = lambda row: any(policies[label].skips(opening(row)) for label in receivers)
    return policies


def check_kinds(parts: Parts) -> None:
    """Raise UserError for what `Parts.check_policies` refuses, as far as it is known before any
    weights are loaded."""
    loaded = parts.loaded
    paths = {n: (*learning.path, "policy") for n, learning in parts.config.learners.items()}
    parts.check_policies(
        {
            label: loaded.objects[path] if path in loaded.objects else load_target(loaded, path)
            for label, path in paths.items()
        }
    )


def _place(policy: Policy, config: RunConfig, accelerator: Accelerator) -> None:
    """Shard the policy, if that is set, and move it to its device."""
    if config.train.shard:
        policy.shard(processes.mesh(accelerator, config.train.shard))
    if policy.mesh is not None and policy.scale_loss:
        raise UserError(
            "train.shard: gradients in float16 need a loss scale, which sharding does not support; "
            "set policy.precision to float32 or bf16"
        )
    policy.place(accelerator.device)


def read_attachments(loaded: LoadedConfig) -> bool:
    """Whether any policy of the run reads what is attached to prompts."""
    paths = [(*learning.path, "policy") for learning in loaded.config.learners.values()]
    kinds = [
        loaded.objects[path] if path in loaded.objects else load_target(loaded, path)
        for path in paths
    ]
    return any(getattr(kind, "reads_attachments", False) for kind in kinds)


def kind_and_settings(loaded: LoadedConfig, path: KeyPath) -> tuple[Any, Any]:
    """What the section of a policy names, and its `Config`, None if it has none.

    Of a policy passed in Python its class, and its attribute `config`.
    """
    if path not in loaded.objects:
        target = load_target(loaded, path)
        return target, check_options(loaded, path, target)
    policy = loaded.objects[path]
    kind = policy if isinstance(policy, type) else type(policy)
    return kind, getattr(policy, "config", None)


# ---- teachers


def check_teachers(parts: Parts) -> None:
    """Raise UserError for a teacher whose outputs on the policy's rollouts would mean nothing.

    Needs no weights.
    """
    for learning in parts.config.learners.values():
        if learning.teacher is None:
            continue
        policy, settings = kind_and_settings(parts.loaded, (*learning.path, "policy"))
        path = (*learning.path, "teacher")
        teacher, teacher_settings = kind_and_settings(parts.loaded, path)
        if not all(isinstance(kind, type) for kind in (policy, teacher)):
            continue  # a function that builds a policy
        try:
            if not issubclass(teacher, Policy):
                raise UserError(f"expected a groupwise.Policy, found the class {teacher.__name__}")
            policy.check_teacher(settings, teacher, teacher_settings)
        except UserError as error:
            raise UserError(parts.loaded.origin.message(path, str(error))) from error


def build_teachers(parts: Parts, accelerator: Accelerator) -> dict[str, Policy]:
    """The teachers by label of their learner, frozen, with their weights on the device.

    Each process holds all of a teacher, or with `train.shard` a shard.
    """
    teachers, receivers = dict[str, Policy](), parts.players.receivers
    for label, learning in parts.config.learners.items():
        if learning.teacher is None:
            continue
        teacher: Policy = make_part(parts.loaded, (*learning.path, "teacher"))
        teacher.prepare(outputs=parts.algorithms[label].teacher, facts=frozenset())
        with progress.doing("the teacher"):
            _place(teacher, parts.config, accelerator)
        teacher.requires_grad_(False)
        teacher.check_prompts(parts.rows() if label in receivers else ())
        teachers[label] = teacher
    opening = parts.players.opening
    reading = [teacher for label, teacher in teachers.items() if label in receivers]
    if reading:
        others = parts.prompts.skips
        parts.prompts.skips = lambda row: others(row) or any(x.skips(opening(row)) for x in reading)
    return teachers
