"""Trees: the files of an archive, of which there may not be more than a tree has room for."""

import io
import tarfile
import zipfile

import pytest

from groupwise_sandbox import tree

FILES = {"a.py": b"x" * 60, "shop/b.py": b"y" * 60}


def of_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)


def of_tar(path):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in FILES.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(("name", "write"), [("files.zip", of_zip), ("files.tar.gz", of_tar)])
def test_the_files_of_an_archive_are_bounded_together(tmp_path, monkeypatch, name, write):
    write(tmp_path / name)
    row = {"files": str(tmp_path / name)}
    monkeypatch.setattr(tree, "MOST", 120)
    assert tree.tree_of(row) == FILES
    monkeypatch.setattr(tree, "MOST", 119)
    with pytest.raises(ValueError, match="more than 119 bytes"):
        tree.tree_of(row)
