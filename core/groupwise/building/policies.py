"""Policies: those of a run and their teachers, with their weights on this process's device."""

from accelerate import Accelerator
from accelerate.utils import set_seed

from groupwise.building.making import make_part
from groupwise.building.parts import Parts
from groupwise.config.learners import SOLE
from groupwise.config.sections import RunConfig
from groupwise.kit import processes, progress
from groupwise.kit.errors import UserError
from groupwise.plugins.plugin import Plugin
from groupwise.plugins.resolved import ResolvedConfig
from groupwise.policy import Policy
from groupwise.preflight import Preflight


def build_policies(parts: Parts, accelerator: Accelerator) -> dict[str, Policy]:
    """The policies with their weights on this process's device, by label; checks the prompts."""
    config = parts.config
    policies = {}
    for label in config.learners:
        plugin = parts.plugin(label)
        parts.algorithms[label].check(plugin.settings)
        if isinstance(plugin.part_type, type) and plugin.settings is not None:
            parts.check_tools(label, plugin.part_type, plugin.settings)
        # Only initialisation (of adapters, say) draws from the global generators.
        set_seed(config.seed)
        policies[label] = make_part(plugin)
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
    parts.check_policies({label: parts.plugin(label).target for label in parts.config.learners})


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


def read_attachments(loaded: ResolvedConfig) -> bool:
    """Whether any policy of the run reads what is attached to prompts."""
    paths = [(*learning.path, "policy") for learning in loaded.config.learners.values()]
    return any(_reads_attachments(loaded.plugins[path]) for path in paths)


def _reads_attachments(plugin: Plugin) -> bool:
    kind = plugin.target
    own, default = getattr(kind, "reads_attached", None), vars(Preflight)["reads_attached"].__func__
    if getattr(own, "__func__", default) is default:  # whatever its options are
        return getattr(kind, "reads_attachments", False)
    return bool(own and own(plugin.settings))


# ---- teachers


def check_teachers(parts: Parts) -> None:
    """Raise UserError for a teacher whose outputs on the policy's rollouts would mean nothing.

    Needs no weights.
    """
    for label, learning in parts.config.learners.items():
        if learning.teacher is None:
            continue
        policy, teacher = parts.plugin(label), parts.plugin(label, "teacher")
        settings = policy.settings, teacher.settings  # checked first: they name keys themselves
        if not all(isinstance(each.part_type, type) for each in (policy, teacher)):
            continue  # a function that builds a policy
        try:
            if not issubclass(teacher.part_type, Policy):
                name = teacher.part_type.__name__
                raise UserError(f"expected a groupwise.Policy, found the class {name}")
            policy.part_type.check_teacher(settings[0], teacher.part_type, settings[1])
        except UserError as error:
            raise UserError(teacher.message(str(error))) from error


def build_teachers(parts: Parts, accelerator: Accelerator) -> dict[str, Policy]:
    """The teachers by label of their learner, frozen, with their weights on the device.

    Each process holds all of a teacher, or with `train.shard` a shard.
    """
    teachers, receivers = dict[str, Policy](), parts.players.receivers
    for label, learning in parts.config.learners.items():
        if learning.teacher is None:
            continue
        teacher: Policy = make_part(parts.plugin(label, "teacher"))
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
