#!/usr/bin/env bash
# Trains ddp.py with two ranks on each of two hosts, which are network namespaces of this machine with a cable between them (root).
#     python/torch/hosts.sh venv/bin/python
set -euo pipefail
python=${1:-python3} steps=20 example=$(dirname "$0")/ddp.py
hosts=("sealane-$$-0" "sealane-$$-1")
trap 'kill $(jobs -p) 2>/dev/null || true; for host in "${hosts[@]}"; do ip netns del "$host" 2>/dev/null || true; done' EXIT
for host in "${hosts[@]}"; do ip netns add "$host"; done
ip link add eth0 netns "${hosts[0]}" type veth peer name eth0 netns "${hosts[1]}"
for number in 0 1; do
    ip -n "${hosts[number]}" address add "10.77.0.$((number + 1))/24" dev eth0
    ip -n "${hosts[number]}" link set lo up
    ip -n "${hosts[number]}" link set eth0 up
done
train() {
    OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 timeout 300 ip netns exec "${hosts[$1]}" "$python" -m torch.distributed.run \
        --nnodes 2 --nproc-per-node 2 --node-rank "$1" --master-addr 10.77.0.1 --master-port 29500 "$example" --steps "$steps" --compare gloo
}
train 1 &
other=$!
train 0
wait "$other"
