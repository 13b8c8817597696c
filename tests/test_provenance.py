"""What a result is said to be made with."""

import importlib.util
import shutil
import subprocess

import pytest

from impala import provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def copy_in(folder):
    """Returns the module as a copy of it in `folder`/impala."""
    (folder / "impala").mkdir(parents=True)
    path = shutil.copy(provenance.__file__, folder / "impala")
    spec = importlib.util.spec_from_file_location("copied", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def clone(tmp_path):
    """Returns the copy in a clone, all of it committed, and the clone's folder."""
    module = copy_in(tmp_path)
    (tmp_path / ".gitignore").write_text("__pycache__\n.venv\n")  # as this project's
    git(tmp_path, "init")
    git(tmp_path, "add", ".gitignore", "impala/provenance.py")
    git(tmp_path, "commit", "-m", "all")
    return module, tmp_path


def test_edits_count_in_files_that_git_does_not_know_yet_too(clone):
    module, folder = clone
    (folder / "notes.txt").write_text("of no package")
    clean = module.commit_and_edits()
    assert module.commit() == clean and len(clean) == 12
    seen = [clean]
    for text in ("x = 1", "x = 2"):
        (folder / "impala" / "mine.py").write_text(text)
        seen.append(module.commit_and_edits())
        assert module.commit() == f"{clean}-dirty"
    for text in (b"y = 3", b"y = 4 # \xff", b"y = 3"):
        (folder / "impala" / "provenance.py").write_bytes(text)
        seen.append(module.commit_and_edits())
    assert seen[3] == seen[5] and len({*seen}) == 5 and all(name.startswith(f"{clean}-dirty-") for name in seen[1:])


def test_code_changes_with_package_and_configurations_only(clone):
    module, folder = clone
    assert module.code() == "unknown", "a folder is missing"
    (folder / "configs").mkdir()
    seen = []
    for path in ("configs/a.yaml", "notes.txt", "impala/mine.py"):
        (folder / path).write_text(path)
        seen.append(module.code())
        git(folder, "add", path)
        git(folder, "commit", "-m", path)
        seen.append(module.code())
    edited, with_a, with_edited_notes, with_notes, with_edited_module, with_module = seen
    assert edited == "unknown" and with_a == with_edited_notes == with_notes
    assert len({with_a, with_edited_module, with_module}) == 3 and "dirty" in with_edited_module


def test_installed_in_a_clone_of_something_else_its_commit_is_unknown(clone):
    installed = copy_in(clone[1] / ".venv" / "site-packages")
    assert installed.commit() == installed.commit_and_edits() == "unknown"
