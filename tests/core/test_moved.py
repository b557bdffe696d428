"""Authors' files of earlier versions import modules by the names that they had."""

import importlib
import subprocess
import sys

import pytest

from groupwise.moved import MOVED


@pytest.mark.parametrize("former", MOVED)
def test_a_former_name_is_the_module_itself(former):
    module = importlib.import_module(MOVED[former])
    assert importlib.import_module(former) is module
    assert module.__spec__.name == module.__name__ == MOVED[former]


def test_in_a_fresh_process_and_by_every_form_of_import():
    code = (
        "from groupwise.errors import UserError\n"
        "import groupwise.options as options\n"
        "from groupwise import processes\n"
        "import groupwise.kit.errors, groupwise.kit.processes\n"
        "assert UserError is groupwise.kit.errors.UserError\n"
        "assert processes is groupwise.kit.processes\n"
        "assert options.__name__ == 'groupwise.kit.options'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_missing_as_before():
    with pytest.raises(ModuleNotFoundError, match=r"groupwise\.nothing"):
        importlib.import_module("groupwise.nothing")
