#!/usr/bin/env bash
# Trains and keeps a list of runs, one after another: scripts/run_list.sh docs/results/pong/runs.txt
#
# A line of the list is a topic below docs/results and what `impala train` gets: pong/seed_0 pong --seed 0
# Topics that are kept already are skipped; a run that was stopped is resumed. So the same command goes on where it ended.
set -eu
trap "exit 130" INT TERM  # or else a run that was stopped would be kept as if it had ended
cd "$(dirname "$0")/.."
while read -r topic arguments <&3 || [ -n "$topic" ]; do
  case $topic in ''|'#'*) continue ;; esac
  if [ -e "docs/results/$topic/metrics.csv" ] || [ -e "docs/results/$topic/member_0/metrics.csv" ]; then continue; fi
  echo "== $topic: impala train $arguments"
  # shellcheck disable=SC2086  # words of the list are arguments
  .venv/bin/impala train $arguments --run "runs/$topic" </dev/null
  scripts/keep_result.sh "runs/$topic" "$topic"
done 3<"$1"
