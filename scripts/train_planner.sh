#!/usr/bin/env bash
# Trains the Planner by GRPO against a frozen Executor, by default with the paper's numbers (Qwen3-8B, 4 GPUs; the
# Executor is an endpoint, models.executor); --tiny: the embedded model on this machine's CPU, on the bundled questions,
# after a short warm start unless --policy.adapter names another one. All other words go to `mia train planner`; --out is
# the folder.
#
#   bash scripts/train_planner.sh --tiny
#   bash scripts/train_planner.sh --tiny --policy.adapter runs/sft-planner --out runs/planner
#   bash scripts/train_planner.sh --dataset.path train.parquet --search.index my-index --out runs/planner
#
# ACCELERATE names a config of `accelerate launch` for several GPUs, see configs/accelerate/; without it one process
# trains.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
train_role planner "$@"
