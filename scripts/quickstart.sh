#!/usr/bin/env bash
# From nothing to a first answer: virtual environment, packages, embedded model, bundled corpus, one question.
# No key and no GPU needed. Can be run again at any time, from any folder.
#
#   bash scripts/quickstart.sh
#   bash scripts/quickstart.sh "Which river flows through the capital of Hungary?"
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

setup embedded,search,serve
say "embedded model"
"$VENV/bin/mia" model fetch >&2
say "question"
exec "$VENV/bin/mia" ask "${@:-Which river flows through the capital of Austria?}"
