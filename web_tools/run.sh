#!/usr/bin/env bash
# Serves online search at http://127.0.0.1:8002, as `mia serve web` does.
#
#   export SERPER_API_KEY=...; cd web_tools; bash ./run.sh
#   bash web_tools/run.sh --port 9002 --web.mode replay      any option of `mia serve web`
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python="$root/.venv/bin/python"
[ -x "$python" ] || python=python3
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" -m web_tools "$@"
