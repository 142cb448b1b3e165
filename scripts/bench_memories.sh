#!/usr/bin/env bash
# All memories on one Executor: every method answers the same questions with the same search and budget, one after the
# other, and one table compares them. Without options: the embedded model, 60 questions of the bundled corpus, no key.
#
#   bash scripts/bench_memories.sh
#   bash scripts/bench_memories.sh --questions q.jsonl --corpus c.jsonl --config mine.toml --limit 200 --out runs/memories
#
#   --questions FILE  questions of the dataset that the config names   (default: the bundled ones)
#   --corpus FILE     passages, as `mia index build` takes them   (default: the bundled ones)
#   --config FILE     settings   (default: configs/eval/memories.toml)
#   --limit N         first N questions; 0: all   (default: 60)
#   --out DIR         folder of the runs and of table.md   (default: a new one in ~/.mia/evals); --resume goes on with it
#   --a.b VALUE       any setting of `mia eval`
#
# METHODS="react mia" runs only some. If the config names no Manager model of its own and uses the embedded model, which
# cannot write what Mem0, A-Mem, ExpeL and ReasoningBank ask of a Manager, one made of rules does (and is the panel of
# MIA without ground truth); the table says so.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/bench.sh"

METHODS=${METHODS:-direct react plan_only rag_traces rag_summaries mem0 amem expel reasoningbank memento mia mia_unsupervised}
bench_options "$@"
CONFIG=${CONFIG:-$ROOT/configs/eval/memories.toml}
OUT=${OUT:-${MIA_HOME:-$HOME/.mia}/evals/memories-$(date +%Y%m%d-%H%M%S)}
[ -z "$QUESTIONS" ] || need_path "$QUESTIONS" "questions" --questions
[ -z "$CORPUS" ] || need_path "$CORPUS" "corpus" --corpus
need_path "$CONFIG" "config" --config
bench_setup mem0
places=()
if [ -n "$QUESTIONS" ]; then places+=(--dataset.path "$QUESTIONS"); fi
if [ -n "$CORPUS" ]; then
  bench_index
  places+=(--search.index "$INDEX")
fi

note=()
if [[ " ${MORE[*]-} " != *" --models."* ]] && ! grep -q '^\[models\.manager\]' "$CONFIG" && grep -q '"embedded:"' "$CONFIG"; then
  pipe=$(mktemp -u)
  mkfifo "$pipe"
  "$VENV/bin/python" "$ROOT/scripts/bench/scripted_manager.py" >"$pipe" &
  served=$!
  trap 'kill "$served" 2>/dev/null || true; rm -f "$pipe"' EXIT
  read -r url <"$pipe" || die "the scripted Manager did not start" "run scripts/bench/scripted_manager.py by itself"
  places+=(--models.manager.url "$url" --models.manager.model scripted-manager)
  places+=(--models.judge.url "$url" --models.judge.model scripted-manager)
  note+=(--note "The Manager, and the panel of mia_unsupervised, is a script of rules: the rows show that the methods work, not how good they are.")
fi

runs=() broken=0
for method in $METHODS; do
  say "$method"
  runs+=("$OUT/$method")
  "$VENV/bin/mia" eval "$CONFIG" --method.name "$method" ${places[@]+"${places[@]}"} --limit "${LIMIT:-60}" \
    --out "$OUT/$method" ${MORE[@]+"${MORE[@]}"} || broken=1
done
say "table"
"$VENV/bin/mia" compare "${runs[@]}" --table --out "$OUT/table.md" ${note[@]+"${note[@]}"}
exit "$broken"
