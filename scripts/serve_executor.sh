#!/usr/bin/env bash
# Serves an Executor checkpoint (FP8 or bfloat16) on one GPU by vLLM, as MIA calls it: up to four pictures a question,
# prefixes of conversations kept. Further words go to vLLM.
#
#   bash scripts/serve_executor.sh executor-fp8 8000
#   bash scripts/serve_executor.sh Qwen/Qwen2.5-VL-7B-Instruct 8000 --gpu-memory-utilization 0.6
#
# VLLM names another command than `vllm`, e.g. one in an environment of its own, which it needs beside the extra `fp8`.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
[ $# -ge 1 ] || die "no checkpoint given" "see --help"
checkpoint=$1 port=${2:-8000}
shift $(($# < 2 ? $# : 2))
vllm=${VLLM:-vllm}
command -v "$vllm" >/dev/null || die "vLLM is not installed" "pip install vllm in an environment of its own; VLLM=/path/to/vllm"
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 ||
  die "no NVIDIA GPU can be used here" "serve on a machine with one; on the CPU use mia with --url local:$checkpoint"
exec "$vllm" serve "$checkpoint" --port "$port" --served-model-name executor --max-model-len 32768 \
  --limit-mm-per-prompt '{"image": 4}' --enable-prefix-caching "$@"
