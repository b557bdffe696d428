"""Authors' files of earlier versions import modules by the names that they had."""

import importlib
import subprocess
import sys

import pytest

import groupwise
from groupwise.moved import FORMULAS, MOVED
from groupwise.registry import installed


@pytest.mark.parametrize("former", MOVED)
def test_a_former_name_is_the_module_itself(former):
    module = importlib.import_module(MOVED[former])
    assert importlib.import_module(former) is module
    assert module.__spec__.name == module.__name__ == MOVED[former]


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in FORMULAS.items() for name in names]
)
def test_a_formula_of_a_variant_has_its_former_name_too(module, name):
    variant = importlib.import_module(f"groupwise_algorithms.{FORMULAS[module][name]}")
    assert getattr(importlib.import_module(module), name) is vars(variant)[name]
    assert vars(variant)[name].__module__ == variant.__name__


def test_other_formulas_are_missing_as_before():
    with pytest.raises(AttributeError, match=r"'groupwise\.objective' has no attribute 'sap'"):
        groupwise.objective.sap  # noqa: B018


@pytest.mark.parametrize(("kind", "name"), [("prompts", "dataset"), ("algorithms", "rloo")])
def test_a_part_has_its_qualified_name_wherever_it_lies(kind, name):
    assert installed().load(kind, f"groupwise/{name}") is installed().load(kind, name)


@pytest.mark.slow
def test_in_a_fresh_process_and_by_every_form_of_import():
    code = (
        "from groupwise.errors import UserError\n"
        "import groupwise.options as options\n"
        "from groupwise import processes\n"
        "import groupwise.kit.errors, groupwise.kit.processes\n"
        "assert UserError is groupwise.kit.errors.UserError\n"
        "assert processes is groupwise.kit.processes\n"
        "assert options.__name__ == 'groupwise.kit.options'\n"
        "from groupwise.algorithms import gspo, grpo\n"
        "from groupwise.algorithms.rloo import RLOO\n"
        "import groupwise_algorithms.rloo\n"
        "assert RLOO is groupwise_algorithms.rloo.RLOO\n"
        "from groupwise.objective import sapo\n"
        "from groupwise_algorithms.sapo import sapo as own\n"
        "assert sapo is own\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_missing_as_before():
    with pytest.raises(ModuleNotFoundError, match=r"groupwise\.nothing"):
        importlib.import_module("groupwise.nothing")
