#!/usr/bin/env bash
# Runs a script on ranks of two "machines": two network namespaces, joined by a link of 1 Gb/s.
#
#   tests/benchmarks/two_machines.sh [RATE] [-n RANKS] SCRIPT [ARGUMENT ...]
#
#   tests/benchmarks/two_machines.sh tests/benchmarks/versus_horovod.py
#   tests/benchmarks/two_machines.sh 10gbit -m tensoropt check zoo:lenet5 --plan plan.json
#
# RATE is tc's, such as 1gbit (the default) or 100mbit. RANKS are 2, one for each machine, or any even number: half of them run
# on each. Each machine has a core and a host name of its own. Needs root, and iproute2 (ip, tc) and util-linux (unshare,
# taskset). What it makes it removes, also when it is interrupted.
set -euo pipefail

fail() {
  echo "two_machines.sh: $1" >&2
  exit 2
}

rate=1gbit
if [[ ${1:-} =~ ^[0-9]+(k|m|g)?bit$ ]]; then
  rate=$1
  shift
fi
ranks=2
if [[ ${1:-} == -n ]]; then
  ranks=${2:-}
  [[ $ranks =~ ^[0-9]+$ && $ranks -gt 0 && $((ranks % 2)) == 0 ]] || fail "-n takes an even number of ranks, got '$ranks'"
  shift 2
fi
[[ $# -gt 0 ]] || fail "no script; say what to run: two_machines.sh [RATE] [-n RANKS] SCRIPT [ARGUMENT ...]"
[[ $(id -u) == 0 ]] || fail "network namespaces need root, and this is user $(id -un)"
for tool in ip tc unshare taskset; do
  command -v "$tool" >/dev/null || fail "there is no $tool; install iproute2 and util-linux"
done
[[ $(nproc) -ge 2 ]] || fail "each machine needs a core of its own, and there is $(nproc)"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=$root/.venv/bin/python
[[ -x $python ]] || python=$(command -v python3)
mpirun=$(dirname "$python")/mpirun
[[ -x $mpirun ]] || fail "there is no mpirun beside $python; run make install"

tag=$$
spaces=("opt$tag-0" "opt$tag-1")
agent=$(mktemp)
clean() {
  for space in "${spaces[@]}"; do ip netns delete "$space" 2>/dev/null || true; done
  rm -f "$agent"
}
trap clean EXIT
trap 'exit 130' INT TERM

ip netns add "${spaces[0]}" || fail "network namespaces can't be made here (in a container: it needs CAP_SYS_ADMIN)"
ip netns add "${spaces[1]}"
ip link add "v$tag-0" type veth peer name "v$tag-1" || fail "there are no veth pairs here"
for machine in 0 1; do
  space=${spaces[$machine]}
  ip link set "v$tag-$machine" netns "$space" name eth0
  ip -n "$space" address add "10.77.0.$((machine + 1))/24" dev eth0
  ip -n "$space" link set lo up
  ip -n "$space" link set eth0 up
  tc -n "$space" qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 20ms || fail "tc can't limit a link to $rate"
done

# mpirun starts its other half by this instead of ssh: AGENT HOST COMMAND.
cat >"$agent" <<END
#!/usr/bin/env bash
shift
exec ip netns exec ${spaces[1]} taskset -c 1 unshare --uts bash -c 'hostname machine1; exec bash -c "\$0"' "\$*"
END
chmod +x "$agent"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PYTHONUNBUFFERED=1
export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-3} TF_NUM_INTRAOP_THREADS=${TF_NUM_INTRAOP_THREADS:-1}
ip netns exec "${spaces[0]}" taskset -c 0 unshare --uts bash -c 'hostname machine0; exec "$@"' bash \
  "$mpirun" --prtemca plm_ssh_agent "$agent" --host 10.77.0.1:$((ranks / 2)),10.77.0.2:$((ranks / 2)) --bind-to none \
  --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0 "$python" "$@"
