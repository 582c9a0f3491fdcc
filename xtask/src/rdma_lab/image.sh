# Copies files of this machine, and the libraries that they name, into the current folder, which is the root of the guest. Takes the
# folder where the guest's programs look for libraries, and then pairs: a file's place in the guest, and its path here. The first
# file of a place stays.
set -eu
libraries=$1
shift

put() {
    if [ ! -e "$1" ]; then install -D -m 755 "$2" "$1"; fi
}

while [ $# -gt 0 ]; do
    put "$1" "$2"
    # It fails for what is not a dynamic program, and such a file needs nothing.
    named=$(ldd "$2" 2>/dev/null) || named=
    case $named in *'not found'*)
        printf 'this machine has not every library of %s:\n%s\n' "$2" "$named" >&2
        exit 1
        ;;
    esac
    # All lie in one folder of the guest, where they are looked for last but always; but for the loader, which a program names by its path.
    for library in $(printf '%s\n' "$named" | grep -o '/[^ ]*'); do
        case $library in
        */ld-linux*) put ".$library" "$library" ;;
        *) put ".$libraries/${library##*/}" "$library" ;;
        esac
    done
    shift 2
done
