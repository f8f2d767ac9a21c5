#!/usr/bin/env bash
# Ranks of `torch_train.py ddp`, each in a network namespace of its own, over a limited, lossy link.
#
#   torch_ddp_lab.sh [--ranks 2] [--rate 100mbit] [--loss 10%] [--congestion cubic|bbr] -- ARGS
#
# ARGS go to `torch_train.py ddp`, for example --data DIR --iterations 100. `--rate none` leaves the
# link as it is. Standard output is that of rank 0; its last line has the congestion control that
# its connections used. `dogwild-lab run` makes the hosts (cargo build --release -p dogwild-lab;
# DOGWILD_LAB names another program); they go with it, also after Ctrl-C, SIGTERM and kill -9.
# Several labs at once do not meet: nothing is made in the caller's namespace. Exit codes: those
# of torch_train.py.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    echo "torch_ddp_lab.sh: $1" >&2
    exit "$2"
}

# Runs in host 0 of the lab: starts the ranks, ends all when one fails.
inside() {
    local congestion=$1 addresses rank code=0 left=$DOGWILD_LAB_HOSTS
    shift
    read -ra addresses <<<"$DOGWILD_LAB_ADDRS"
    trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    for ((rank = 0; rank < DOGWILD_LAB_HOSTS; rank++)); do
        # By route: a namespace may make its default only what the machine allows to everyone.
        "$DOGWILD_LAB" exec . "$rank" -- ip route replace 10.77.0.0/24 dev eth0 proto kernel \
            scope link src "${addresses[rank]}" congctl "$congestion"
        # A rank ends with this shell, however that ends.
        "$DOGWILD_LAB" exec . "$rank" -- setpriv --pdeathsig KILL \
            /usr/bin/python3 "$here/torch_train.py" ddp --rank "$rank" \
            --world "$DOGWILD_LAB_HOSTS" --master "${addresses[0]}:29500" --iface eth0 "$@" &
    done
    while ((left-- > 0 && code == 0)); do
        wait -n || code=$?
    done
    exit "$code"
}

if [ "${1-}" = --inside ]; then
    shift
    inside "$@"
fi

ranks=2 rate=100mbit loss='' congestion=cubic
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ $# -gt 1 ] || fail "$1 needs a value; arguments of torch_train.py ddp go after --" 2
    case $1 in
        --ranks) ranks=$2 ;;
        --rate) rate=$2 ;;
        --loss) loss=$2 ;;
        --congestion) congestion=$2 ;;
        *) fail "unknown argument $1; arguments of torch_train.py ddp go after --" 2 ;;
    esac
    shift 2
done
[ $# -gt 1 ] || fail "give the arguments of torch_train.py ddp after --, at least --data DIR" 2
shift

known=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
[[ " $known " == *" $congestion "* ]] || fail "--congestion $congestion: this kernel has $known" 2
if [ -z "${DOGWILD_LAB-}" ]; then
    for DOGWILD_LAB in "$here"/../target/{release,debug}/dogwild-lab ''; do
        [ ! -x "$DOGWILD_LAB" ] || break
    done
fi
[ -x "$DOGWILD_LAB" ] || fail "dogwild-lab is missing; build it (cargo build -p dogwild-lab) or \
name it by DOGWILD_LAB" 1
export DOGWILD_LAB

limits=()
[ "$rate" = none ] || limits+=(--rate "$rate")
[ -z "$loss" ] || limits+=(--loss "$loss")
echo "torch_ddp_lab.sh: $ranks hosts, rate $rate, loss ${loss:-none}, TCP $congestion" >&2
exec "$DOGWILD_LAB" run "$ranks" "${limits[@]}" -- \
    "$here/torch_ddp_lab.sh" --inside "$congestion" "$@"
