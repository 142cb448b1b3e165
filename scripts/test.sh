#!/usr/bin/env bash
# Everything that must pass: format, lint, types, tests with coverage. Sets itself up; can be run again, from any folder.
#
#   bash scripts/test.sh            all but the suites marked long
#   bash scripts/test.sh --long     the long suites too (crash, fuzz, state machines, load)
#   bash scripts/test.sh -k memory  further words go to pytest (then coverage has no lower bound)
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

marks="not long"
if [ "${1:-}" = "--long" ]; then marks=""; shift; fi
setup embedded,search,serve,web,postgres,eval,mem0,train,fp8,dev
cd "$ROOT"
say "format and lint"
"$VENV/bin/ruff" format --check .
"$VENV/bin/ruff" check .
say "types"
"$VENV/bin/mypy"
say "embedded model"
"$VENV/bin/mia" model fetch >&2
say "tests"
bound=()
[ $# -eq 0 ] || bound=(--cov-fail-under=0)
exec "$VENV/bin/python" -m pytest -m "$marks" --cov --cov-report=term:skip-covered ${bound[@]+"${bound[@]}"} "$@"
