# Sourced by the scripts that train: set-up, profile and folder of a role, one process or accelerate's.
#   train_role executor "$@"

source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

train_role() {
  local role=$1 profile=train/$1
  shift
  if [ "${1:-}" = --tiny ]; then
    profile=${profile}_tiny
    shift
  fi
  case " $* " in *" --out "*) ;; *) set -- "$@" --out "runs/$(basename "$profile")" ;; esac
  setup embedded,search,train
  say "training ($profile)"
  if [ -n "${ACCELERATE:-}" ]; then
    exec "$VENV/bin/accelerate" launch --config_file "$ACCELERATE" -m "${role}_train.cli" "$profile" "$@"
  fi
  exec "$VENV/bin/mia" train "$role" "$profile" "$@"
}
