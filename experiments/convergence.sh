#!/bin/sh
# Rows of docs/reference/merging.md that are not an experiment file: one name, one command; median
# and range of several seeds.
#
#   experiments/convergence.sh              names the rows
#   experiments/convergence.sh solvers-4    runs one
#
# DOGWILD_DATA holds mnist/ (the four .gz files).
# Rows of `twin` are virtual time and may share the machine; rows of `repeat` are real processes
# and need it for themselves. Ages follow from the rate: bytes of a pass / rate / time of a step.
set -eu
cd "$(dirname "$0")/.."
bin=${DOGWILD_BIN:-target/release}
mnist="mnist:${DOGWILD_DATA:-../shared/data}/mnist"

twin() { "$bin/dogwild-study" twin "$@"; }
repeat() { "$bin/dogwild-study" repeat "$@"; }
to_985() { twin --data "$mnist" --test-every 50 --iterations 4000 --target-accuracy 98.5% "$@"; }
# Four paced nodes, each behind a cable of 100 Mbit/s; solvers alone make 60 steps a second.
thin() {
  repeat --seeds 5 -- --lab --nodes 4 --pace 100Mbit --pace-steps 15 --data "$mnist" \
    --iterations 4000 --test-every 50 --tester --target-accuracy 98.5% "$@"
}

row() {
  case $1 in
  # Solvers to 98.5 %, 10 ms a step; links of 10 Gbit/s, and slower ones.
  solvers-1) to_985 --seeds 5 --nodes 1 ;;
  solvers-2) to_985 --seeds 5 --nodes 2 --rate 1250MB ;;
  solvers-4) to_985 --seeds 5 --nodes 4 --rate 1250MB ;;
  solvers-8) to_985 --seeds 5 --nodes 8 --rate 1250MB ;;
  solvers-8-400mb) to_985 --seeds 5 --nodes 8 --rate 400MB ;;
  solvers-8-64mb) to_985 --seeds 5 --nodes 8 --rate 64MB ;;
  solvers-8x2) to_985 --seeds 5 --nodes 8 --solvers 2 --rate 1250MB ;;
  solvers-4-1gbit) to_985 --seeds 5 --nodes 4 --rate 125MB ;;
  solvers-8-1gbit) to_985 --seeds 5 --nodes 8 --rate 125MB ;;
  solvers-16-1gbit) to_985 --seeds 5 --nodes 16 --rate 125MB ;;
  # Nothing paced, real processes on this machine.
  unpaced-4x1) repeat --seeds 10 -- --nodes 4 --data "$mnist" --iterations 900 ;;
  unpaced-3x2) repeat --seeds 10 -- --nodes 3 --solvers 2 --data "$mnist" --iterations 900 ;;
  # A thin link that loses, in turn with a clean one.
  thin-0) thin ;;
  thin-1) thin --loss 1% ;;
  thin-10) thin --loss 10% ;;
  thin-30) thin --loss 30% ;;
  # Bursts of ten frames, a tenth of all lost.
  thin-bursts) thin --loss-burst 0.0111,0.1 ;;
  # Two nodes compared with one, to 98 %.
  to-98-1) repeat --seeds 5 -- --nodes 1 --data "$mnist" --test-every 100 --test-images 0 --target-accuracy 98% ;;
  to-98-2) repeat --seeds 5 -- --nodes 2 --data "$mnist" --test-every 100 --test-images 0 --target-accuracy 98% ;;
  # Steps a second: two trainings that know nothing of each other; two nodes; two behind 100 Mbit/s.
  rate-apart)
    repeat --seeds 3 -- --nodes 1 --data "$mnist" --iterations 1500 --test-every 0 &
    repeat --seeds 3 -- --nodes 1 --data "$mnist" --iterations 1500 --test-every 0
    wait
    ;;
  rate-2) repeat --seeds 3 -- --nodes 2 --data "$mnist" --iterations 3000 --test-every 0 ;;
  rate-2-thin)
    repeat --seeds 3 -- --lab --nodes 2 --pace 100Mbit --precision f32 --data "$mnist" \
      --iterations 3000 --test-every 0
    ;;
  # Synchronous training, two workers and a server: alone, and with 100 Mbit/s each.
  synchronous)
    repeat --seeds 3 -- --sync poseidon --workers 2 --data "$mnist" --test-every 50 \
      --target-accuracy 98%
    ;;
  synchronous-thin)
    repeat --seeds 3 -- --sync poseidon --workers 2 --bandwidth 12.5MB --data "$mnist" \
      --test-every 50 --target-accuracy 98%
    ;;
  *)
    echo "$0: no row $1; without an argument it names all" >&2
    exit 2
    ;;
  esac
}

if [ $# -eq 0 ]; then
  sed -n 's/^  \([a-z0-9.x-]*\))\( .*\)*$/\1/p' "$0"
else
  if ! [ -x "$bin/dogwild-study" ]; then
    echo "$0: no program $bin/dogwild-study: run cargo build --release --workspace" >&2
    exit 1
  fi
  for name in "$@"; do
    echo "# $name"
    row "$name"
  done
fi
