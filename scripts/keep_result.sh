#!/usr/bin/env bash
# Keeps the evidence of a run: scripts/keep_result.sh runs/pong pong  →  docs/results/pong/
set -eu
run=$1 topic=docs/results/$2
mkdir -p "$topic"
for file in episodes.csv tasks.csv config.yaml versions.txt command.txt evaluations.csv launches.json restarts.csv notices.csv kills.csv; do
  if [ -e "$run/$file" ]; then cp "$run/$file" "$topic/"; fi
done
for file in "$run"/member_[0-9]*/{config.yaml,population.csv}; do  # of a population; its episodes are too many
  if [ -e "$file" ]; then install -D -m 644 "$file" "$topic${file#"$run"}"; fi
done
.venv/bin/python - "$PWD" "$topic/command.txt" "$topic/launches.json" <<'END'  # no paths of this machine
import os, pathlib, sys
here, *files = sys.argv[1:]
home = os.environ.get("HOME", "")
for path in map(pathlib.Path, files):
    text = path.read_text().replace(here + "/", "")
    path.write_text(text.replace(home, "~") if len(home) > 1 else text)
END
.venv/bin/impala plot "$run" --output "$topic/curves.png"
for file in "$run"/{member_[0-9]*/,}metrics.csv; do  # last: by them run_list.sh knows what is kept whole
  if [ -e "$file" ]; then install -D -m 644 "$file" "$topic${file#"$run"}"; fi
done
