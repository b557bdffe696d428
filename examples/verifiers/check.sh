#!/bin/sh
# Installs Groupwise, this package and verifiers into a virtual environment of their own, and tests them there.
# Usage: sh check.sh FOLDER
set -eu
cd "$(dirname "$0")"
python3 -m venv "$1"
"$1/bin/pip" install --quiet -e '../..[agents]' -e '.[dev]'
PATH="$1/bin:$PATH" HF_HUB_OFFLINE=1 "$1/bin/python" -m pytest -q
