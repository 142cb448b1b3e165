#!/usr/bin/env bash
# Trains the Executor by GRPO, by default with the paper's numbers (Qwen2.5-VL-7B, 8 GPUs); --tiny: the embedded model on
# this machine's CPU, on the bundled questions, after a short warm start unless --policy.adapter names another one. All
# other words go to `mia train executor`; --out is the folder.
#
#   bash scripts/train_executor.sh --tiny
#   bash scripts/train_executor.sh --tiny --policy.adapter runs/sft --out runs/grpo
#   bash scripts/train_executor.sh --dataset.path train.parquet --search.index my-index --out runs/executor
#
# ACCELERATE names a config of `accelerate launch` for several GPUs, see configs/accelerate/; without it one process
# trains.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
train_role executor "$@"
