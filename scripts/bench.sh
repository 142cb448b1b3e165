# Sourced by the benchmark scripts: their options, set-up, and the index of a corpus, which is built once.
#   bench_options "$@"    sets QUESTIONS CORPUS CONFIG LIMIT OUT and MORE (further words, for `mia eval`)
#   bench_setup           virtual environment, and the embedded model if the config uses it
#   bench_index           sets INDEX to the index of $CORPUS in $MIA_HOME, built when it is not there

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

bench_options() {
  QUESTIONS="" CORPUS="" CONFIG="" LIMIT="" OUT="" MORE=()
  while [ $# -gt 0 ]; do
    case "$1" in
      --questions | --corpus | --config | --limit | --out)
        [ $# -ge 2 ] || usage "$1 needs a value"
        case "$1" in
          --questions) QUESTIONS=$2 ;;
          --corpus) CORPUS=$2 ;;
          --config) CONFIG=$2 ;;
          --limit) LIMIT=$2 ;;
          --out) OUT=$2 ;;
        esac
        shift 2
        ;;
      --resume) MORE+=("$1"); shift ;;
      --*.*) [ $# -ge 2 ] || usage "$1 needs a value"; MORE+=("$1" "$2"); shift 2 ;;
      *) usage "unknown option $1" ;;
    esac
  done
  case "$LIMIT" in *[!0-9]*) usage "--limit must be a whole number, not $LIMIT" ;; esac
  DATA=${MIA_DATA:-$ROOT/../shared/data}
}

usage() { printf 'error: %s\n  remedy: see --help\n' "$1" >&2; exit 2; }

need_path() { # need_path PATH WHAT OPTION
  [ -e "$1" ] || die "no $2 at $1" "give it with $3, or set MIA_DATA to the folder that holds it"
}

bench_setup() {
  local extras=embedded,search,eval name
  while read -r name; do
    [ -n "${!name:-}" ] || die "the environment variable $name, which $CONFIG names as a key, is not set" "export $name=…"
  done < <(sed -nE 's/^ *(api_key_env|token_env) *= *"([A-Za-z_][A-Za-z0-9_]*)".*/\2/p' "$CONFIG")
  if [ -n "${1:-}" ]; then extras="$extras,$1"; fi
  setup "$extras"
  if grep -q '"embedded:"' "$CONFIG"; then "$VENV/bin/mia" model fetch >&2; fi
}

bench_index() { # further words go to `mia index build`
  local mark
  mark=$("$VENV/bin/python" - "$CORPUS" <<'PY'
import hashlib, os, sys
path = os.path.realpath(sys.argv[1])
at = os.stat(path)
print(hashlib.sha256(f"{path} {at.st_size} {at.st_mtime_ns}".encode()).hexdigest()[:12])
PY
  )
  INDEX=${MIA_HOME:-$HOME/.mia}/index/$(basename "$CORPUS" | cut -d. -f1)-$mark
  if [ ! -f "$INDEX/manifest.json" ]; then
    say "index of $CORPUS"
    "$VENV/bin/mia" index build "$CORPUS" --out "$INDEX" "$@" >&2
  fi
}
