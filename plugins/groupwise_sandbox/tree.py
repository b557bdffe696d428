"""Tree: the files of a folder by their names, wherever a row has them."""

import difflib
import io
import lzma
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias

Tree: TypeAlias = Mapping[str, bytes]
"""Contents by names in the folder, such as `shop/cart.py`."""
Edits: TypeAlias = Mapping[str, str | None]
"""What became of files: their text, or None where they were removed."""
LEFT_OUT = (".git", "__pycache__")
"""Folders that are no part of a tree."""
MOST = 256 << 20
"""Bytes of an archive's files."""
_CUT = 20_000


def tree_of(row: Mapping[str, Any], checkouts: str | None = None) -> Tree:
    """The files of a row: `files`, a mapping of texts, or the path of a folder or an archive (zip,
    tar); without it, the commit `base_commit` of `repo`.

    checkouts: a folder with a clone of each repository, `owner__name` or `owner/name`.

    Raises ValueError where there are none.
    """
    files = row.get("files")
    if isinstance(files, Mapping):
        texts = {name_of(name): each for name, each in files.items() if each is not None}
        if wrong := [name for name, each in texts.items() if not isinstance(each, str)]:
            raise ValueError(f"the file {wrong[0]!r} is no text")
        return {name: each.encode() for name, each in texts.items()}
    if isinstance(files, str):
        return _at(Path(files))
    if row.get("repo") and row.get("base_commit") and checkouts:
        return _commit(Path(checkouts), str(row["repo"]), str(row["base_commit"]))
    if row.get("repo") and row.get("base_commit"):
        raise ValueError("its files are a commit of a repository: set `checkouts`, or give `files`")
    if image := row.get("docker_image") or row.get("image_name"):
        raise ValueError(
            f"its files are in the image of a container, {image}, and none is run here: give the "
            "column `files`, or take the environment `agent` with an agent that has containers"
        )
    raise ValueError("it has no files: expected the column `files`, or `repo` and `base_commit`")


def name_of(path: str) -> str:
    """The name of a file in a folder by its path there: `a/b` for `./a//b`. Raises ValueError."""
    plain = PurePosixPath(path)
    if not plain.parts or plain.is_absolute() or ".." in plain.parts or "\0" in path:
        raise ValueError(f"{path!r} names no file in the folder")
    return str(plain)


def modules_of(tree: Iterable[str]) -> set[str]:
    """The names by which its Python files are imported, without what is below them."""
    names = [name.removeprefix("src/") for name in tree if name.endswith(".py")]
    return {name.partition("/")[0].removesuffix(".py") for name in names}


def of_tar(archive: bytes) -> dict[str, bytes]:
    """The regular files of an archive of tar. Raises ValueError."""
    with _refusing_damage(), tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = (each for each in opened if each.isreg() or each.islnk())
        members = ((each.name, opened.extractfile(each)) for each in files)
        return _read((name, content) for name, content in members if content is not None)


def _of_zip(archive: Path) -> dict[str, bytes]:
    with _refusing_damage(), zipfile.ZipFile(archive) as opened:
        members = (each for each in opened.infolist() if not each.is_dir())
        return _read((each.filename, opened.open(each)) for each in members)


def _read(members: Iterable[tuple[str, IO[bytes]]]) -> dict[str, bytes]:
    files, left = dict[str, bytes](), MOST
    for name, content in members:
        with content:
            data = content.read(left + 1)
        left -= len(data)
        if left < 0:
            raise ValueError(f"the files have more than {MOST} bytes")
        files[name_of(name)] = data
    return files


@contextmanager
def _refusing_damage() -> Iterator[None]:
    damage = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)
    try:
        yield
    except (*damage, KeyError, NotImplementedError, RuntimeError) as error:  # or it is encrypted
        raise ValueError(f"the files cannot be read: {error}") from error


def edits_of(before: Tree, after: Tree) -> dict[str, str | None]:
    """What became of the files between the two; files that are no text count as unchanged."""
    edits = dict[str, str | None](dict.fromkeys(sorted({*before} - {*after})))
    for name in sorted(after):
        if not {*LEFT_OUT} & {*PurePosixPath(name).parts} and after[name] != before.get(name):
            try:
                edits[name] = after[name].decode()
            except UnicodeDecodeError:
                continue
    return edits


def edited(before: Tree, edits: Edits) -> dict[str, bytes]:
    """The files after the edits. Raises ValueError for a name that is none."""
    after = dict(before)
    for name, text in edits.items():
        if text is None:
            after.pop(name_of(name), None)
        else:
            after[name_of(name)] = text.encode("utf-8", "surrogatepass")
    return after


def difference(before: Tree, edits: Edits) -> str:
    """The edits for people, as a unified diff, which is cut if it is long."""
    lines = list[str]()
    for name, text in edits.items():
        old = before.get(name, b"").decode("utf-8", "replace").splitlines()
        lines += difflib.unified_diff(old, (text or "").splitlines(), name, name, lineterm="", n=2)
    return "\n".join(lines)[:_CUT]


def _at(path: Path) -> Tree:
    if path.is_dir():
        return below(path)
    if path.is_file():
        return _of_zip(path) if zipfile.is_zipfile(path) else of_tar(path.read_bytes())
    raise ValueError(f"there is no folder or archive {str(path)!r}")


def below(folder: Path) -> Tree:
    """The files of a folder of the machine; links are left out."""
    files = dict[str, bytes]()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and not {*LEFT_OUT} & {*name.parts}:
            files[name.as_posix()] = path.read_bytes()
    return files


def _commit(checkouts: Path, repository: str, commit: str) -> Tree:
    names = (repository.replace("/", "__"), repository)
    clone = next((checkouts / name for name in names if (checkouts / name).is_dir()), None)
    if clone is None:
        raise ValueError(f"there is no clone of {repository} in {checkouts}: expected {names[0]}")
    if not commit.isalnum():
        raise ValueError(f"{commit!r} is no commit")
    command = ["git", "-C", str(clone), "archive", "--format=tar", commit]
    ran = subprocess.run(command, capture_output=True, check=False)
    if ran.returncode != 0:
        words = ran.stderr.decode("utf-8", "replace").strip()[-200:]
        raise ValueError(f"the commit {commit} of {repository} cannot be read: {words}")
    return of_tar(ran.stdout)
