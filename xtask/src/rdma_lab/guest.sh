#!/bin/sh
# The guest's first program: mounts what programs need, makes the device, runs the jobs of /lab one after the other, and powers off.
# What jobs print goes out at the second serial port, and between it the lab's records (rdma_lab.rs), which begin with a byte that
# text does not use.
say() { printf '\036lab %s\n' "$*"; }
must() { "$@" || broken "$*"; }
broken() {
    say broken "$1"
    poweroff -f
}

must /bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null
must mount -t sysfs sys /sys
must mount -t devtmpfs dev /dev
exec </dev/null >/dev/ttyS1 2>&1
must stty raw </dev/ttyS1
must mkdir -p /dev/shm /dev/pts
must mount -t tmpfs -o mode=1777 shm /dev/shm
must mount -t tmpfs -o mode=1777 tmp /tmp
must mount -t devpts pts /dev/pts
for one in fd:/proc/self/fd stdin:/proc/self/fd/0 stdout:/proc/self/fd/1 stderr:/proc/self/fd/2; do
    must ln -sf "${one#*:}" "/dev/${one%%:*}"
done
while read -r module; do must insmod "/modules/$module"; done </modules/list

must hostname lab
must ulimit -l unlimited
must ulimit -n 65536
must ip link set lo up
# The address is there before the link is up: Soft-RoCE takes what the device has when it is made.
must ip addr add 10.9.0.1/24 dev eth0
must ip addr add 10.9.0.2/24 dev eth0
must ip link set eth0 up
must rdma link add rxe0 type rxe netdev eth0
rdma link show rxe0/1 | grep -q 'state ACTIVE' || broken "bring a port up: $(rdma link show)"
cd /tmp
export HOME=/tmp PATH=/bin RUST_BACKTRACE=1

say ready
number=0
for seconds in $(cat /lab/limits); do
    say began $number
    timeout -s KILL "$seconds" /bin/sh "/lab/$number"
    say ended $number $?
    # No process of a job outlives it.
    kill -9 -1 2>/dev/null
    number=$((number + 1))
done
say 'done'
poweroff -f
