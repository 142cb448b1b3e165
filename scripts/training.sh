# Sourced by the scripts that train: set-up, profile and folder of a role, one process or accelerate's.
#   train_role executor "$@"
#   warm executor runs/warm 96

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

train_role() {
  local role=$1 profile=train/$1 tiny=""
  shift
  if [ "${1:-}" = --tiny ]; then
    profile=${profile}_tiny tiny=1
    shift
  fi
  case " $* " in *" --out "*) ;; *) set -- "$@" --out "runs/$(basename "$profile")" ;; esac
  setup embedded,search,train
  # The embedded model as it is cannot do the job at all: nothing it does is rewarded, so there is nothing to learn from.
  case "$tiny $* " in "1 "*"--policy."* | " "*) ;; *)
    local out
    out=$(value --out "$@")
    warm "$role" "$out/warm" 96
    set -- "$@" --policy.adapter "$out/warm/final"
    ;;
  esac
  say "training ($profile)"
  if [ -n "${ACCELERATE:-}" ]; then
    exec "$VENV/bin/accelerate" launch --config_file "$ACCELERATE" -m "${role}_train.cli" "$profile" "$@"
  fi
  exec "$VENV/bin/mia" train "$role" "$profile" "$@"
}

warm() { # warm ROLE DIR [QUESTIONS]: the embedded model learns from scripted runs, unless that is done
  if [ -d "$2/final" ]; then return; fi
  say "warm start of the $1"
  "$VENV/bin/mia" train sft train/sft_tiny --traces.role "$1" --out "$2" --resume ${3:+--traces.questions "$3"}
}

value() { # value --NAME WORDS...: what follows --NAME
  local name=$1
  shift
  while [ "$1" != "$name" ]; do shift; done
  printf %s "$2"
}
