"""How Groupwise is installed, in README and on the docs' first page.

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
The package is not on PyPI yet: install it in a checkout. (`constraints.txt` has the versions that
were tested together; without `-c constraints.txt` pip takes the newest.)

```sh
pip install -e '.[all]' -c constraints.txt
```"""
PUBLISHED = f"""\
```sh
pip install 'groupwise[all]'
```

The examples are in the repository: `git clone {ADDRESS} && cd groupwise`. (Its `constraints.txt`
has the versions that were tested together, for `-c constraints.txt`.)"""


def text(*, published: bool) -> str:
    return PUBLISHED if published else CHECKOUT


if __name__ == "__main__":
    rewrite(text(published=PROJECT["tool"]["groupwise"]["published"]))
