#!/usr/bin/env bash
# HotpotQA: questions answered over a corpus by one method, ending in a report with EM, F1 and intervals.
# Without options: the embedded model, 40 questions of ../shared/data/hotpotqa; no key and no GPU needed.
#
#   bash scripts/bench_hotpotqa.sh
#   bash scripts/bench_hotpotqa.sh --limit 500 --out runs/react --method.name react --models.default.url http://127.0.0.1:8000/v1
#
#   --questions FILE  official JSON, or JSON lines   (default: hotpotqa/questions.jsonl in $MIA_DATA or ../shared/data)
#   --corpus FILE     passages, as `mia index build` takes them   (default: corpus.jsonl beside the questions)
#   --config FILE     settings   (default: configs/eval/hotpotqa.toml)
#   --limit N         first N questions; 0: all   (default: 40)
#   --out DIR         folder of the run   (default: a new one in ~/.mia/evals); --resume goes on with it
#   --a.b VALUE       any setting of `mia eval`
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/bench.sh"

bench_options "$@"
QUESTIONS=${QUESTIONS:-$DATA/hotpotqa/questions.jsonl}
CORPUS=${CORPUS:-$(dirname "$QUESTIONS")/corpus.jsonl}
CONFIG=${CONFIG:-$ROOT/configs/eval/hotpotqa.toml}
OUT=${OUT:-${MIA_HOME:-$HOME/.mia}/evals/hotpotqa-$(date +%Y%m%d-%H%M%S)}
need_path "$QUESTIONS" "questions" --questions
need_path "$CORPUS" "corpus" --corpus
need_path "$CONFIG" "config" --config
bench_setup
bench_index
say "questions"
exec "$VENV/bin/mia" eval "$CONFIG" --dataset.path "$QUESTIONS" --search.index "$INDEX" --limit "${LIMIT:-40}" \
  --out "$OUT" ${MORE[@]+"${MORE[@]}"}
