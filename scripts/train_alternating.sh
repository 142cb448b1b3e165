#!/usr/bin/env bash
# Trains both roles in turns, as the paper does: the Executor with plans of the frozen Planner, then the Planner against
# the frozen Executor, and again. A stage that has ended is not run again, one that was broken off goes on, so the same
# command continues. --tiny: the embedded model with an adapter for each role, on this machine's CPU.
#
#   bash scripts/train_alternating.sh --tiny --rounds 2 --out runs/alternating
#   bash scripts/train_alternating.sh --tiny --executor runs/sft-executor/final --planner runs/sft-planner/final
#   SERVE="bash serve.sh" bash scripts/train_alternating.sh --dataset.path train.parquet --search.index my-index
#
#   --rounds N          how often both are trained   (default: 1)
#   --out DIR           a folder for each round and role   (default: runs/alternating)
#   --executor FOLDER   adapter or checkpoint that the Executor starts from   (default: what its config names; with
#                       --tiny a short warm start)
#   --planner FOLDER    the same of the Planner, which is frozen first
#
# All other words go to both `mia train`; those in EXECUTOR and PLANNER to one of them. Without --tiny, SERVE is the
# command that serves the frozen role; it is given a folder (or hub name) and a port, e.g. a script with
# `vllm serve "$1" --port "$2"`, and is ended after each stage with all it started. PORT (default: 8001) must be free.
# ACCELERATE names a config of `accelerate launch`, see configs/accelerate/.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,21s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

tiny="" rounds=1 out=runs/alternating executor="" planner="" port=${PORT:-8001} words=()
while [ $# -gt 0 ]; do
  case "$1" in
    --tiny) tiny=_tiny; shift ;;
    --rounds | --out | --executor | --planner)
      [ $# -ge 2 ] || die "$1 needs a value" "see --help"
      printf -v "${1#--}" %s "$2"
      shift 2
      ;;
    *) words+=("$1"); shift ;;
  esac
done
case "$rounds" in "" | *[!0-9]*) die "--rounds must be a whole number, not $rounds" "see --help" ;; esac
[ -n "$tiny" ] || [ -n "${SERVE:-}" ] || die "nothing serves the frozen role" "set SERVE, see --help, or give --tiny"
for start in "$executor" "$planner"; do
  [ -z "$start" ] || [ -d "$start" ] || die "no folder $start to start from" "give the folder \`final\` of a run"
done
setup embedded,search,train
case "$tiny ${words[*]-} ${EXECUTOR:-} ${PLANNER:-} " in _tiny*"--policy."* | " "*) ;; *) # see scripts/training.sh
  [ -n "$executor" ] || { warm executor "$out/warm-executor" 96; executor=$out/warm-executor/final; }
  [ -n "$planner" ] || { warm planner "$out/warm-planner" 96; planner=$out/warm-planner/final; }
  ;;
esac

adapts() { [ -f "$1/adapter_config.json" ]; }

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

serve() { # serve CHECKPOINT: returns when it answers; `served` leads its process group
  ! answers || die "port $port is taken" "end what listens there, or set PORT"
  setsid $SERVE "$1" "$port" &
  served=$!
  trap ended EXIT
  until curl -sf "http://127.0.0.1:$port/v1/models" >/dev/null; do
    kill -0 "$served" 2>/dev/null || die "SERVE ended before it answered on port $port" "run it by itself: $SERVE $1 $port"
    sleep 1
  done
}

ended() { # ends what `serve` started, and waits until the port is free again
  trap - EXIT
  kill -- "-$served" 2>/dev/null || true
  wait "$served" 2>/dev/null || true
  while answers; do sleep 1; done
}

frozen() { # frozen ROLE CHECKPOINT: sets `partner`, the words that name the frozen role's model
  partner=(--models."$1".url "http://127.0.0.1:$port/v1" --models."$1".model "$2")
  if [ -z "$tiny" ]; then
    serve "$2"
  elif [ -z "$2" ] || adapts "$2"; then
    partner=(--models."$1".url embedded: --models."$1".context 4096)
    [ -z "$2" ] || partner+=(--models."$1".extra_body.adapter "$2")
  else
    partner=(--models."$1".url "local:$2" --models."$1".context 4096)
  fi
}

stage() { # stage ROLE ROUND START PARTNER_ROLE PARTNER FURTHER...: trains, unless that is done
  local role=$1 round=$2 start=$3 other=$4 beside=$5 place="$out/$2-$1" begin=()
  shift 5
  if [ -d "$place/final" ]; then say "round $round, $role: done"; return; fi
  say "round $round, $role"
  if [ -n "$start" ]; then
    if adapts "$start"; then begin=(--policy.adapter "$start"); else begin=(--policy.path "$start"); fi
  fi
  frozen "$other" "$beside"
  [ ! -d "$place" ] || begin+=(--resume)
  local run=("$VENV/bin/mia" train "$role")
  [ -z "${ACCELERATE:-}" ] || run=("$VENV/bin/accelerate" launch --config_file "$ACCELERATE" -m "${role}_train.cli")
  "${run[@]}" "train/$role$tiny" --out "$place" ${begin[@]+"${begin[@]}"} "${partner[@]}" "$@" ${words[@]+"${words[@]}"}
  [ -n "$tiny" ] || ended
}

for round in $(seq 1 "$rounds"); do
  beside=$planner
  [ -n "$tiny$beside" ] || beside=Qwen/Qwen3-8B
  # shellcheck disable=SC2086
  stage executor "$round" "$executor" planner "$beside" --rollout.plans planner ${EXECUTOR:-}
  executor="$out/$round-executor/final"
  # shellcheck disable=SC2086
  stage planner "$round" "$planner" executor "$executor" ${PLANNER:-}
  planner="$out/$round-planner/final"
done
say "trained"
printf 'executor  %s\nplanner   %s\n' "$executor" "$planner"
