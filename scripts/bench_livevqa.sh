#!/usr/bin/env bash
# LiveVQA: questions on pictures of news, papers and videos, for a model that sees; ends in a report by part and level.
#
#   bash scripts/bench_livevqa.sh --stub                            no model: an endpoint that checks what it is sent
#   bash scripts/bench_livevqa.sh --tiny --form choice --limit 10   a tiny model of random weights, on the CPU
#   bash scripts/bench_livevqa.sh --questions livevqa --form choice --out runs/one --models.default.url http://127.0.0.1:8000/v1
#
#   --questions PATH     folder of the parts, or a part's benchmark.json   (default: livevqa in $MIA_DATA or ../shared/data)
#   --images DIR         folder of the questions' pictures, if it is not beside them
#   --form open|choice   open: held against the accepted answers; choice: options are shown, the letter counts   (open)
#   --corpus FILE        passages for text search, as `mia index build` takes them   (default: the bundled corpus)
#   --config FILE        settings   (default: configs/eval/livevqa.toml, with --tiny livevqa_tiny.toml)
#   --limit N            first N questions of the shuffled order   (default: all)
#   --out DIR            folder of the run   (default: a new one in ~/.mia/evals); --resume goes on with it
#   --stub               scripts/bench/stub_vision.py in the model's place; --answers FILE says what it answers
#   --tiny               scripts/tiny_vision.py in the model's place
#   --a.b VALUE          any setting of `mia eval`
#
# Image search looks among the questions' own pictures (scripts/bench/livevqa_pictures.py) unless the config or
# --web.images.path names a folder, so no key is needed. A [judge] in the config overrides the rule of the form.
set -euo pipefail
case "${1:-}" in -h | --help) sed -n '2,21s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
source "$(dirname "${BASH_SOURCE[0]}")/bench.sh"

FORM=open IMAGES="" ANSWERS="" STUB="" TINY="" rest=()
while [ $# -gt 0 ]; do
  case "$1" in
    --form | --images | --answers)
      [ $# -ge 2 ] || usage "$1 needs a value"
      case "$1" in --form) FORM=$2 ;; --images) IMAGES=$2 ;; --answers) ANSWERS=$2 ;; esac
      shift 2
      ;;
    --stub) STUB=1; shift ;;
    --tiny) TINY=1; shift ;;
    *) rest+=("$1"); shift ;;
  esac
done
bench_options ${rest[@]+"${rest[@]}"}
case "$FORM" in open | choice) ;; *) usage "--form must be open or choice, not $FORM" ;; esac
[ -z "$STUB" ] || [ -z "$TINY" ] || usage "--stub and --tiny exclude each other"
[ -z "$ANSWERS" ] || [ -n "$STUB" ] || usage "--answers is for --stub"

QUESTIONS=${QUESTIONS:-$DATA/livevqa}
CONFIG=${CONFIG:-$ROOT/configs/eval/livevqa${TINY:+_tiny}.toml}
OUT=${OUT:-${MIA_HOME:-$HOME/.mia}/evals/livevqa-$FORM-$(date +%Y%m%d-%H%M%S)}
need_path "$QUESTIONS" "questions" --questions
need_path "$CONFIG" "config" --config
[ -z "$IMAGES" ] || need_path "$IMAGES" "pictures" --images
[ -z "$ANSWERS" ] || need_path "$ANSWERS" "answers" --answers
[ -z "$CORPUS" ] || need_path "$CORPUS" "corpus" --corpus
bench_setup web

places=("--dataset.path" "$QUESTIONS" ${IMAGES:+--dataset.images "$IMAGES"})
if [ -n "$CORPUS" ]; then
  bench_index
  places+=(--search.index "$INDEX")
fi
if [[ " ${MORE[*]-} " != *" --web.images."* ]] && "$VENV/bin/python" - "$CONFIG" <<'PY'; then
import sys, tomllib
images = tomllib.load(open(sys.argv[1], "rb")).get("web", {}).get("images", {})
sys.exit(images.get("kind") != "index" or "path" in images)
PY
  say "pictures for image search"
  pictures=$("$VENV/bin/python" "$ROOT/scripts/bench/livevqa_pictures.py" "$QUESTIONS" ${IMAGES:+--images "$IMAGES"})
  places+=(--web.images.path "$pictures")
fi
if [ -n "$TINY" ]; then
  say "tiny model"
  model=$("$VENV/bin/python" "$ROOT/scripts/tiny_vision.py")
  places+=(--models.default.url "local:$model")
fi
run=("$VENV/bin/mia" eval "$CONFIG" --dataset.form "$FORM" "${places[@]}" --out "$OUT" ${LIMIT:+--limit "$LIMIT"})
if [ -n "$STUB" ]; then
  run=("$VENV/bin/python" "$ROOT/scripts/bench/stub_vision.py" --questions "$QUESTIONS" ${IMAGES:+--images "$IMAGES"}
    ${ANSWERS:+--answers "$ANSWERS"} --report "$OUT/checks.json" -- "${run[@]}" --models.default.url "{url}")
fi
say "questions"
exec "${run[@]}" ${MORE[@]+"${MORE[@]}"}
