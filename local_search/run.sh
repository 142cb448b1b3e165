#!/usr/bin/env bash
# Serves the offline search on port 8001, three passages for each query; sets itself up, can be run from any folder.
#
#   bash run.sh                                                    the bundled small corpus
#   MIA__SEARCH__INDEX=/data/wiki-index WORKERS=4 bash run.sh      an index made by `mia index build`
#   MIA__SEARCH__INDEX=/data/wiki-index bash run.sh --search.mode bm25 --host 0.0.0.0
#
# Variables: MIA__SEARCH__INDEX, MIA__SEARCH__MODE, MIA__SEARCH__K (3), PORT (8001), WORKERS (1). Further words go to
# `mia serve search`.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../scripts/setup.sh"

for number in PORT WORKERS; do
  [[ ${!number:-1} =~ ^[0-9]+$ ]] || die "$number=${!number} is no number" "give a number, or unset $number"
done
index=${MIA__SEARCH__INDEX:-}
if [ -n "$index" ] && [ ! -d "$index" ]; then
  die "MIA__SEARCH__INDEX=$index is no folder" "make an index: $VENV/bin/mia index build CORPUS --out $index"
fi
[ -x "$VENV/bin/mia" ] || setup search,serve
exec "$VENV/bin/mia" serve search --port "${PORT:-8001}" --workers "${WORKERS:-1}" "$@"
