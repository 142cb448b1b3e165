#!/usr/bin/env bash
# Trains Tiny MIA on this machine's CPU: an adapter of the embedded model for each role, as they come with the package.
# First a warm start of both on scripted runs of the bundled training questions, then GRPO of both in turns. Some two
# hours on 2 idle cores; the same command goes on where it was broken off.
#
#   bash scripts/train_tiny_mia.sh
#   bash scripts/train_tiny_mia.sh --out runs/tiny-mia --executor.grpo.max_steps 20
#
#   --out DIR   folder of all stages; adapters/executor and adapters/planner in it are what the package has in
#               mia/adapters   (default: runs/tiny-mia)
#
# Other words that begin with --executor. or --planner. go to the GRPO of that role.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

out=runs/tiny-mia executor_words=() planner_words=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || die "$1 needs a value" "see --help"
  case "$1" in
    --out) out=$2 ;;
    --executor.*) executor_words+=("--${1#--executor.}" "$2") ;;
    --planner.*) planner_words+=("--${1#--planner.}" "$2") ;;
    *) die "$1 is not known" "see --help" ;;
  esac
  shift 2
done
setup embedded,search,train

warm executor "$out/warm-executor"
warm planner "$out/warm-planner" 256
EXECUTOR="${executor_words[*]-}" PLANNER="${planner_words[*]-}" bash "$ROOT/scripts/train_alternating.sh" --tiny \
  --executor "$out/warm-executor/final" --planner "$out/warm-planner/final" --out "$out/grpo"
for role in executor planner; do
  packed="$out/adapters/$role"
  [ -d "$packed" ] || "$VENV/bin/mia" model push "$out/grpo/1-$role/final" "mia/tiny-$role" --dtype bfloat16 --to "$packed"
done
