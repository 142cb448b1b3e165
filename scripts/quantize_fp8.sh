#!/usr/bin/env bash
# Writes the FP8 checkpoint of an Executor (Qwen2.5-VL) for vLLM and checks it; --tiny: of a small one of random weights,
# made on the spot, on the CPU. All other words go to `mia quantize`.
#
#   bash scripts/quantize_fp8.sh runs/executor/final --out executor-fp8
#   bash scripts/quantize_fp8.sh --tiny --out /tmp/tiny-fp8
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
setup embedded,fp8
if [ "${1:-}" = --tiny ]; then
  shift
  model=$(mktemp -d)
  trap 'rm -rf "$model"' EXIT
  "$VENV/bin/python" "$ROOT/scripts/tiny_vision.py" "$model/tiny" --wide >&2
  "$VENV/bin/mia" quantize "$model/tiny" "$@"
else
  exec "$VENV/bin/mia" quantize "$@"
fi
