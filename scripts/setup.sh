# Sourced by the other scripts: makes the virtual environment and installs into it what is asked for.
#   setup EXTRAS   e.g. setup embedded,search,serve
# MIA_VENV chooses another folder than .venv; MIA_PYTHON another Python than python3.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${MIA_VENV:-$ROOT/.venv}

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n  remedy: %s\n' "$1" "$2" >&2; exit 1; }

setup() {
  local python=${MIA_PYTHON:-python3} extras=$1 stamp wanted
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    die "$python is missing or older than 3.11" "install Python 3.11 or newer, or set MIA_PYTHON=/path/to/python3.11"
  if [ ! -x "$VENV/bin/python" ]; then
    say "making the virtual environment $VENV"
    "$python" -m venv "$VENV" || die "no virtual environment can be made" "install the venv module (Debian: apt-get install python3-venv)"
  fi
  stamp="$VENV/.mia-installed-${extras//,/-}"
  wanted=$(cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | cksum; echo "$ROOT")
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    say "installing mia[$extras] (a few minutes the first time)"
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -c "$ROOT/constraints.txt" -e "$ROOT[$extras]" ||
      die "the packages could not be installed" "check the network and the free disk (3 GB), then run this again"
    printf '%s\n' "$wanted" >"$stamp"
  fi
}
