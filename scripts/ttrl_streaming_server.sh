#!/usr/bin/env bash
# Test-time learning as a service: answers at once, learns from feedback that comes later. By default Qwen3-8B with the
# paper's numbers (Executor and judge are endpoints); --tiny: the embedded model on this machine's CPU.
#
#   bash scripts/ttrl_streaming_server.sh --tiny
#   bash scripts/ttrl_streaming_server.sh --search.index my-index --out runs/stream --port 8765
#
#   --tiny        the profile ttrl/streaming_tiny instead of ttrl/streaming
#   --limit N     answer N questions, refuse more   (default: no limit)
#   --out DIR     folder of queue, memory and weights   (default: runs/streaming); a killed service goes on with it
#   --port N      port on 127.0.0.1   (default: 8765)
#   --a.b VALUE   any setting of `mia serve stream`
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

profile=ttrl/streaming more=()
for word in "$@"; do
  if [ "$word" = --tiny ]; then profile=ttrl/streaming_tiny; else more+=("$word"); fi
done
case " $* " in *" --out "*) ;; *) more+=(--out "runs/$(basename "$profile")") ;; esac
setup embedded,search,serve,train
exec "$VENV/bin/mia" serve stream "$profile" ${more[@]+"${more[@]}"}
