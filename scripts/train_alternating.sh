#!/usr/bin/env bash
# Trains both roles in turns, as the paper does: the Executor with plans of the frozen Planner, then the Planner against
# the frozen Executor, and again. A stage that has ended is not run again, one that was broken off goes on, so the same
# command continues. --tiny: the embedded model with an adapter for each role, on this machine's CPU.
#
#   bash scripts/train_alternating.sh --tiny --rounds 2 --out runs/alternating
#   SERVE="bash serve.sh" bash scripts/train_alternating.sh --dataset.path train.parquet --search.index my-index
#
#   --rounds N   how often both are trained   (default: 1)
#   --out DIR    a folder for each round and role   (default: runs/alternating)
#
# All other words go to both `mia train`; those in EXECUTOR and PLANNER to one of them. Without --tiny, SERVE is the
# command that serves a checkpoint; it is given the folder (or hub name) and a port, e.g. a script with
# `vllm serve "$1" --port "$2"`, and is ended after each stage. ACCELERATE: see train_executor.sh.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

tiny="" rounds=1 out=runs/alternating words=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tiny) tiny=_tiny; shift ;;
    --rounds | --out)
      [ $# -ge 2 ] || die "$1 needs a value" "see --help"
      if [ "$1" = --rounds ]; then rounds=$2; else out=$2; fi
      shift 2
      ;;
    *) words+=("$1"); shift ;;
  esac
done
case "$rounds" in "" | *[!0-9]*) die "--rounds must be a whole number, not $rounds" "see --help" ;; esac
[ -n "$tiny" ] || [ -n "${SERVE:-}" ] || die "nothing serves the frozen role" "set SERVE, see --help, or give --tiny"
setup embedded,search,train

serve() { # serve CHECKPOINT PORT: waits until it answers
  $SERVE "$1" "$2" &
  served=$!
  trap 'kill "$served" 2>/dev/null || true' EXIT
  until curl -sf "http://127.0.0.1:$2/v1/models" >/dev/null; do
    kill -0 "$served" 2>/dev/null || die "SERVE ended before it answered on port $2" "run it by itself: $SERVE $1 $2"
    sleep 2
  done
}

frozen() { # frozen ROLE CHECKPOINT: sets `partner`, the words that name the frozen role's model
  if [ -n "$tiny" ]; then
    partner=(--models."$1".url embedded: --models."$1".context 4096)
    [ -z "$2" ] || partner+=(--models."$1".extra_body.adapter "$2")
  else
    serve "$2" 8001
    partner=(--models."$1".url http://127.0.0.1:8001/v1 --models."$1".model "$2")
  fi
}

stage() { # stage ROLE ROUND START PARTNER_ROLE PARTNER FURTHER...: trains, unless that is done
  local role=$1 round=$2 start=$3 other=$4 beside=$5 place="$out/$2-$1" begin=()
  shift 5
  if [ -d "$place/final" ]; then say "round $round, $role: done"; return; fi
  say "round $round, $role"
  if [ -n "$start" ]; then
    if [ -n "$tiny" ]; then begin=(--policy.adapter "$start"); else begin=(--policy.path "$start"); fi
  fi
  frozen "$other" "$beside"
  [ ! -d "$place" ] || begin+=(--resume)
  local run=("$VENV/bin/mia" train "$role")
  [ -z "${ACCELERATE:-}" ] || run=("$VENV/bin/accelerate" launch --config_file "$ACCELERATE" -m "${role}_train.cli")
  "${run[@]}" "train/$role$tiny" --out "$place" ${begin[@]+"${begin[@]}"} "${partner[@]}" "$@" ${words[@]+"${words[@]}"}
  if [ -z "$tiny" ]; then kill "$served"; wait "$served" 2>/dev/null || true; trap - EXIT; fi
}

executor="" planner=""
[ -n "$tiny" ] || planner=Qwen/Qwen3-8B
for round in $(seq 1 "$rounds"); do
  # shellcheck disable=SC2086
  stage executor "$round" "$executor" planner "$planner" --rollout.plans planner ${EXECUTOR:-}
  executor="$out/$round-executor/final"
  # shellcheck disable=SC2086
  stage planner "$round" "$([ "$round" = 1 ] || echo "$planner")" executor "$executor" ${PLANNER:-}
  planner="$out/$round-planner/final"
done
say "trained"
printf 'executor  %s\nplanner   %s\n' "$executor" "$planner"
