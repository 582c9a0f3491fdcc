#!/bin/sh
# `pair PROGRAM ARGUMENT...` runs one of perftest's programs as server and as client, prints what the client does, and its figure as
# `sealane bench` reports its own: the median there and back, of one way twice, or the average of 10^9 bytes a second.
"$@" -p 18515 >/tmp/server.log 2>&1 &
server=$!
# A listener is no event that a shell can wait for. The port is 18515, in state LISTEN.
until grep -qE ':4853 [0-9A-F]+:0000 0A' /proc/net/tcp /proc/net/tcp6; do usleep 20000; done
if ! "$@" -p 18515 10.9.0.1 >/tmp/client.log || ! wait $server; then
    echo 'the client and the server said:'
    cat /tmp/client.log /tmp/server.log
    exit 1
fi
cat /tmp/client.log
awk '
    # Columns are told apart by their units, as names may be of several words; the first two have none.
    function column(name) { return 2 + split(substr(heading, 1, index(heading, name)), parts, "]") }
    /^ *#bytes/ {
        heading = $0
        getline
        if (index(heading, "t_typical[usec]"))
            figure = sprintf("\"metric\":\"rtt_us\",\"p50\":%.10g", 2 * $column("t_typical[usec]"))
        else if (index(heading, "BW average[MB/sec]"))
            figure = sprintf("\"metric\":\"gigabytes_per_s\",\"value\":%.10g", $column("BW average[MB/sec]") * 1048576 / 1e9)
        else next
        printf "{\"schema\":\"perftest\",\"results\":[{\"system\":\"perftest\",\"variant\":\"\",%s}]}\n", figure
    }' /tmp/client.log
