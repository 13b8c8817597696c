"""What a result was made with: packages, commit, machine."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_COMPARED = ("impala", "configs")


def commit() -> str:
    """Returns the commit, with "-dirty" if package or configurations differ from it; "unknown" outside a git clone."""
    try:
        _git("ls-files", "--error-unmatch", __file__)  # or else it is installed in a clone of something else
        return _git("rev-parse", "--short=12", "HEAD") + ("-dirty" if _changed() else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def commit_and_edits() -> str:
    """Returns `commit`, with a hash of the edits if there are any: two clones may differ from it in different ways."""
    named = commit()
    try:
        edits = _changed() + _git("diff", "--no-ext-diff", "HEAD", "--", *_COMPARED)
        new = _git("ls-files", "--others", "--exclude-standard", "-z", "--", *_COMPARED).split("\0")
        edits += "".join(hashlib.sha256((_ROOT / name).read_bytes()).hexdigest() for name in sorted(filter(None, new)))
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{named}-{hashlib.sha256(edits.encode()).hexdigest()[:8]}" if named.endswith("-dirty") else named


def code() -> str:
    """Returns what changes with every change of package or configurations, and with no other commit or edit."""
    if (named := commit_and_edits()) == "unknown":
        return named
    try:
        trees = _git("rev-parse", *(f"HEAD:./{folder}" for folder in _COMPARED)).split()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return "-".join([*(tree[:12] for tree in trees), *named.split("-")[1:]])


def _changed() -> str:
    return _git("status", "--porcelain", "--", *_COMPARED)


def _git(*arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(_ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=True)
    return done.stdout.strip()


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Returns the version of Python and of each package, or "not installed"."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Returns the version of each package that is installed."""
    found = versions(packages)
    return {package: found[package] for package in packages if found[package] != "not installed"}


def machine() -> str:
    """Returns system, usable cores, processor and memory in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "unknown processor")
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores = len(os.sched_getaffinity(0))
    return f"{platform.system()} {platform.machine()}, {cores} cores of {model}, {memory_gb:.0f} GB"
