"""How Groupwise is installed and first run, in README and on the docs' first page.

    python docs/tables/install.py README.md
    python docs/tables/install.py docs/index.md

It depends on one variable, `published` in `[tool.groupwise]` of pyproject.toml: whether the package
is on PyPI.
"""

import tomllib
from pathlib import Path

from page import rewrite

PROJECT = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))
ADDRESS = PROJECT["project"]["urls"]["Source"]
CHECKOUT = """\
The package is not on PyPI yet: in a checkout, this installs it and trains a first model.
(`constraints.txt` has the versions that were tested together; without `-c constraints.txt` pip
takes the newest.)

```sh
pip install -e '.[all]' -c constraints.txt && groupwise train examples/arithmetic.yaml
```"""
PUBLISHED = f"""\
The examples are in the repository: `git clone {ADDRESS} && cd groupwise`. There, this installs the
package and trains a first model. (`constraints.txt` has the versions that were tested together.)

```sh
pip install 'groupwise[all]' -c constraints.txt && groupwise train examples/arithmetic.yaml
```"""


def text(*, published: bool) -> str:
    return PUBLISHED if published else CHECKOUT


if __name__ == "__main__":
    rewrite(text(published=PROJECT["tool"]["groupwise"]["published"]))
