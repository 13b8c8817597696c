#!/usr/bin/env bash
# Keeps the evidence of a run: scripts/keep_result.sh runs/pong pong  →  docs/results/pong/
set -eu
run=$1 topic=docs/results/$2
for folder in "$run" "$run"/member_[0-9]*; do  # of a population, the members
  if [ ! -d "$folder" ]; then continue; fi
  kept=$topic${folder#"$run"}
  mkdir -p "$kept"
  for file in metrics.csv episodes.csv tasks.csv population.csv config.yaml versions.txt command.txt evaluations.csv launches.json; do
    if [ -e "$folder/$file" ]; then cp "$folder/$file" "$kept/"; fi
  done
done
sed -i "s#$PWD/##g; s#$HOME#~#g" "$topic/command.txt" "$topic/launches.json"
.venv/bin/impala plot "$run" --output "$topic/curves.png"
