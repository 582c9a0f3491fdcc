#!/usr/bin/env bash
# What the RDMA lab does on this machine, by the first argument:
#   install               installs what is missing of the packages below
#   kernel LAB            keeps Debian's kernel in the folder LAB, downloaded once and not installed, and prints its folder there
#   copy [PLACE PATH]...  copies files into the current folder, which is the root of a guest, with the libraries that they name
#   image KERNEL WORK [PLACE PATH]...
#                         makes WORK/image, the guest's file system, of WORK/root, the lab's own files and these
#   start KERNEL WORK SECONDS
#                         becomes the emulated machine that boots it, for so long; the second serial port is standard output
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# The emulator, and what goes into the guest.
packages=(busybox-static cpio gcc ibverbs-providers ibverbs-utils iproute2 kmod libc6-dev librdmacm1 perftest qemu-system-x86
    util-linux)
# The package that depends on the current kernel's.
kernel_package=linux-image-amd64
# What the guest loads, beside what these depend on. Soft-RoCE computes its checksums with `crc32`, whose driver it does not name as a
# dependency.
modules='crc32_generic virtio_pci virtio_net rdma_rxe ib_uverbs rdma_ucm'
# This machine's programs that the guest has too.
tools=(/bin/busybox /bin/ip /usr/bin/rdma /usr/bin/ib_{read,send,write}_{bw,lat} /usr/bin/ibv_{devices,devinfo,rc_pingpong})
# Where the guest's programs look for libraries, and where Debian keeps them.
libraries=usr/lib/x86_64-linux-gnu
# Loaded by name at run time, or by a panic: `ldd` does not list them.
loaded_later=(libgcc_s.so.1 libibverbs.so.1 librdmacm.so.1)

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# Another one may be at work, which is waited for.
apt() {
    local said
    said=$(DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" 2>&1) || fail "$said"
}

install_missing() {
    local missing=() package
    for package in "${packages[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
    done
    if [ ${#missing[@]} = 0 ]; then return; fi
    if [ "$(id -u)" != 0 ]; then fail "packages are missing; install them as root: apt-get install ${missing[*]}"; fi
    apt update
    apt install -y --no-install-recommends "${missing[@]}"
}

# The kernel's package, or nothing.
current() { apt-cache depends "$kernel_package" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1 || true; }

kernel() {
    local lab=$1 package kept work root release path
    package=$(current)
    if [ -z "$package" ] && [ "$(id -u)" = 0 ]; then
        apt update
        package=$(current)
    fi
    if [ -z "$package" ]; then fail "apt knows no kernel package for $kernel_package: run apt-get update as root"; fi
    kept=$lab/kernel-$package
    # The list is written last: a folder with it is whole.
    if [ "$(head -n 1 "$kept/list" 2>/dev/null)" != "$modules" ]; then
        work=$(mktemp -d "$lab/work-XXXXXX")
        root=$work/root
        (cd "$work" && apt download "$package" && dpkg -x ./*.deb root)
        [ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
        release=$(basename "$root"/lib/modules/*)
        depmod -b "$root" "$release"
        mkdir "$work/kept"
        cp "$root"/boot/vmlinuz* "$work/kept/vmlinuz"
        # In the order in which they can be loaded, each once, whatever this machine wants of modules of these names. What is built in
        # needs no loading.
        for module in $modules; do
            modprobe --config /dev/null --dirname "$root" --set-version "$release" --show-depends "$module"
        done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' >"$work/order"
        while read -r path; do cp "$path" "$work/kept"; done <"$work/order"
        { echo "$modules" && sed 's,.*/,,' "$work/order"; } >"$work/kept/list"
        rm -rf "$kept"
        # Another run may have put the same kernel there meanwhile.
        mv -T "$work/kept" "$kept" || [ -e "$kept/list" ]
        rm -rf "$work"
    fi
    echo "$kept"
}

# The first file of a place stays.
put() {
    if [ ! -e "$1" ]; then install -D -m 755 "$2" "$1"; fi
}

copy() {
    local named library
    while [ $# -gt 0 ]; do
        put "$1" "$2"
        # It fails for what is not a dynamic program, and such a file needs nothing.
        named=$(ldd "$2" 2>/dev/null) || named=
        case $named in *'not found'*) fail "this machine has not every library of $2:"$'\n'"$named" ;; esac
        # All lie in one folder of the guest, where they are looked for last but always; but for the loader, which a program names by its path.
        for library in $(printf '%s\n' "$named" | grep -o '/[^ ]*' || true); do
            case $library in
            */ld-linux*) put ".$library" "$library" ;;
            *) put "$libraries/${library##*/}" "$library" ;;
            esac
        done
        shift 2
    done
}

image() {
    local kernel=$1 work=$2 file
    shift 2
    cd "$work/root"
    mkdir -p proc sys dev tmp run var root etc/libibverbs.d modules
    # Not busybox as the shell: it prefers its own commands to the programs of their names.
    set -- "$@" bin/sh /bin/dash init "$here/guest.sh" bin/pair "$here/pair.sh"
    for file in "${tools[@]}"; do set -- "$@" "bin/${file##*/}" "$file"; done
    for file in "${loaded_later[@]}"; do set -- "$@" "$libraries/$file" "/$libraries/$file"; done
    # Soft-RoCE's half in user space, which libibverbs finds by name.
    for file in "/$libraries"/libibverbs/librxe*; do set -- "$@" ".$file" "$file"; done
    copy "$@"
    sed 1d "$kernel/list" >modules/list
    while read -r file; do cp "$kernel/$file" modules; done <modules/list
    echo 'driver rxe' >etc/libibverbs.d/rxe.driver
    echo 'root:x:0:0:root:/tmp:/bin/sh' >etc/passwd
    echo 'root:x:0:' >etc/group
    printf '127.0.0.1 localhost\n10.9.0.1 lab\n' >etc/hosts
    echo 'hosts: files' >etc/nsswitch.conf
    # As the kernel reads it, whoever owns the files.
    find . -mindepth 1 -print0 | sort -z | cpio --quiet --null --create --format=newc --owner=+0:+0 --file="$work/image"
}

start() {
    # The first serial port is the kernel's, the second the jobs'. The network leads nowhere.
    exec setpriv --pdeathsig KILL timeout --foreground -s KILL "$3" setpriv --pdeathsig KILL qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 2048 \
        -nodefaults -display none -no-reboot -netdev hubport,id=n0,hubid=0 -device virtio-net-pci,netdev=n0,status=off,romfile= \
        -serial "file:$2/kernel.log" -chardev stdio,id=jobs,signal=off -serial chardev:jobs -kernel "$1/vmlinuz" -initrd "$2/image" \
        -append 'console=ttyS0 quiet panic=-1 oops=panic net.ifnames=0 tsc=reliable clocksource=tsc' 2>"$2/emulator.log"
}

case $1 in
install) install_missing ;;
kernel | copy | image | start) "$@" ;;
esac
