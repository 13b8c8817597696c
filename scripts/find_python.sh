#!/bin/sh
# Prints the path of a CPython 3.10 for x86_64 Linux; where there is none, one sentence on stderr and status 1.
# Order: $PYTHON (then nothing else), python3.10 on PATH, pyenv's, uv's, one that uv installs.
# Each candidate is run: a pyenv shim may exist and fail, and Debian's python3.10 may lack ensurepip.

check() {  # prints the interpreter behind a candidate, out of any virtual environment, or fails
  "$1" -c '
import ensurepip, os, platform, ssl, sys
ok = platform.python_implementation() == "CPython" and sys.version_info[:2] == (3, 10)
ok = ok and sys.platform == "linux" and platform.machine() == "x86_64"
inside = sys.prefix != sys.base_prefix
print(os.path.join(sys.base_prefix, "bin", "python3.10") if inside else sys.executable)
sys.exit(not ok)' 2>/dev/null
}

try() {
  for candidate; do
    if [ -n "$candidate" ] && found=$(check "$candidate"); then
      echo "$found"
      exit 0
    fi
  done
}

if [ -n "${PYTHON:-}" ]; then
  try "$PYTHON"
  echo "PYTHON=$PYTHON is not a working CPython 3.10 for x86_64 Linux: name another, or leave PYTHON out to have one searched for." >&2
  exit 1
fi

try python3.10
try "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10*/bin/python
if command -v uv >/dev/null 2>&1; then
  try "$(uv python find --system 3.10 2>/dev/null)"
  echo "No CPython 3.10 here yet: uv installs one." >&2
  uv python install 3.10 >&2
  try "$(UV_PYTHON_PREFERENCE=only-managed uv python find --system 3.10 2>/dev/null)"
fi
echo "No CPython 3.10 for x86_64 Linux was found: install one (\`uv python install 3.10\` or \`pyenv install 3.10\`), or name one with \`make PYTHON=/path/to/python3.10\`." >&2
exit 1
