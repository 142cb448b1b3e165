#!/usr/bin/env bash
# Replays questions against scripts/ttrl_streaming_server.sh: asks, and says later, in another order, what was right.
# By default a file of one's own; --tiny: the bundled test questions.
#
#   bash scripts/ttrl_streaming_client.sh --tiny
#   bash scripts/ttrl_streaming_client.sh questions.jsonl --limit 100 --users 16
#   bash scripts/ttrl_streaming_client.sh ttrl.parquet --dataset.name original
#
#   FILE          JSON Lines (`question`, `answer`; other names: --dataset.columns.question NAME) or Parquet
#   --tiny        the bundled test questions, 16 of them unless --limit says otherwise
#   --limit N     first N questions   (default: all)
#   --url URL     of the service   (default: http://127.0.0.1:8765)
#   --a VALUE     any option of `mia ttrl replay`
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

file="" tiny="" more=()
if [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; then file=$1 && shift; fi
for word in "$@"; do
  if [ "$word" = --tiny ]; then tiny=1; else more+=("$word"); fi
done
if [ -n "$tiny" ]; then
  case " $* " in *" --limit "*) ;; *) more+=(--limit 16) ;; esac
elif [ -n "$file" ]; then
  case " $* " in *" --dataset.name "*) ;; *) more+=(--dataset.name jsonl) ;; esac
  more+=(--dataset.path "$file")
else
  die "no file of questions" "give a JSONL or Parquet file, or --tiny"
fi
setup embedded,search,serve,train
exec "$VENV/bin/mia" ttrl replay ${more[@]+"${more[@]}"}
