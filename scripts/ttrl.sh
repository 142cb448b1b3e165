#!/usr/bin/env bash
# What each part of test-time learning adds: the same stream of questions by every arm under every order seed, then one
# report with paired intervals and the learning curve. By default with the paper's numbers (Qwen3-8B by vLLM; Executor,
# judge and router are endpoints); --tiny: the embedded model on this machine's CPU, on the bundled test questions.
#
#   bash scripts/ttrl.sh --tiny
#   bash scripts/ttrl.sh --tiny --limit 150 --policy.adapter runs/sft-planner/final --out runs/ttrl
#   ARMS="frozen full" SEEDS="0 1 2" bash scripts/ttrl.sh --dataset.path test.parquet --search.index my-index
#
#   --tiny        the profile ttrl/tiny instead of ttrl/paper
#   --limit N     first N questions of each order; 0: all   (default: all, with --tiny 16)
#   --out DIR     folder of the runs and of report.md   (default: runs/ttrl); the same command goes on where it was killed
#   --a.b VALUE   any setting of `mia ttrl`
#
# ARMS picks among frozen, best, memory, weights, full, and panel (full without ground truth); SEEDS are order seeds.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

profile=ttrl/paper limit=0 out="" seeds="0 1 2" more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tiny) profile=ttrl/tiny limit=16 seeds=0 ;;
    --limit) limit_given=${2:?--limit needs a number} && shift ;;
    --out) out=${2:?--out needs a folder} && shift ;;
    *) more+=("$1") ;;
  esac
  shift
done
limit=${limit_given:-$limit}
out=${out:-runs/$(basename "$profile" | sed 's/^paper$/ttrl/; s/^tiny$/ttrl-tiny/')}
setup embedded,search,train,eval

flags_of() {
  case "$1" in
    frozen) echo --learn.weights false --learn.memory off --learn.n 1 ;;
    best) echo --learn.weights false --learn.memory off ;;
    memory) echo --learn.weights false ;;
    weights) echo --learn.memory off ;;
    full) ;;
    panel) echo --learn.feedback panel ;;
    *) die "no arm is called $1" "ARMS may hold frozen, best, memory, weights, full, panel" ;;
  esac
}

runs=() broken=0
for seed in ${SEEDS:-$seeds}; do
  for arm in ${ARMS:-frozen best memory weights full}; do
    say "$arm, order seed $seed"
    run="$out/$arm-$seed"
    flags=$(flags_of "$arm")
    # shellcheck disable=SC2086  # several words
    "$VENV/bin/mia" ttrl "$profile" $flags --eval.order shuffled --eval.seed "$seed" --limit "$limit" --out "$run" \
      --resume ${more[@]+"${more[@]}"} || broken=1
    runs+=("$run")
  done
done
say "report"
"$VENV/bin/mia" ttrl report "${runs[@]}" --plot "$out/curve.png" --out "$out/report.md"
exit "$broken"
