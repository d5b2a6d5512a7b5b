# What the measurements share. A figure is a line `FIGURE SUBJECT KEY VALUE`.

figure() { echo "FIGURE $1 $2 $3"; }

median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

# boot SUBJECT NAME TIMES: of a configured guest, from unpause to the first answer.
# Pings go out all the time before, 500 a second; xl's own start is counted for each guest.
boot() {
    local address began turn
    address=$(cat "/run/guests/$2.address")
    for turn in $(seq "$3"); do
        ! running "$2" || stop "$2"
        create "$2"
        ping -q -i 0.002 -c 1 -w 60 "$address" >/dev/null &
        began=$EPOCHREALTIME
        xl unpause "$2"
        wait $!
        awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.6f\n", b - a }'
    done >/tmp/boots
    figure "$1" boot_s "$(median </tmp/boots)"
    figure "$1" boots_s "$(tr '\n' ',' </tmp/boots)"
}

# pings SUBJECT ADDRESS: 1000 of them, 100 a second.
pings() {
    local said
    ping -q -c 50 -i 0.01 "$2" >/dev/null
    said=$(ping -q -c 1000 -i 0.01 "$2")
    # rtt min/avg/max/mdev = 0.063/0.066/0.077/0.002 ms
    set -- "$1" $(echo "$said" | sed -n 's|^rtt.* = \([^/]*\)/\([^/]*\)/\([^/]*\)/.*|\1 \2 \3|p') "$said"
    figure "$1" ping_min_ms "$2"
    figure "$1" ping_avg_ms "$3"
    figure "$1" ping_max_ms "$4"
    figure "$1" ping_lost "$(echo "$5" | awk '/transmitted/ { print $1 - $4 }')"
}

# pages SUBJECT ADDRESS[:PORT] [COUNT]: the small page over 4 connections.
pages() {
    local port=80 host=${2%:*}
    [ "$host" = "$2" ] || port=${2#*:}
    requests() { sed -n 's/^Requests per second: *\([0-9.]*\).*/\1/p'; }
    ab -q -c 4 -n 50 "http://$2/index.html" >/dev/null
    figure "$1" ab_per_s "$(ab -q -c 4 -n "${3:-1000}" "http://$2/index.html" | requests)"
    figure "$1" ab_keepalive_per_s "$(ab -q -k -c 4 -n $((${3:-1000} * 5)) "http://$2/index.html" | requests)"
    figure "$1" httperf_per_s "$(eagerly httperf --hog --server "$host" --port "$port" --uri /index.html --num-conns $((${3:-1000} / 5)) 2>/dev/null |
        sed -n 's/^Request rate: *\([0-9.]*\).*/\1/p')"
}

# file SUBJECT ADDRESS: 16 MB, five times after one for warmth.
file() {
    local turn
    curl -sS -o /dev/null "http://$2/16m"
    for turn in 1 2 3 4 5; do
        curl -sS -o /dev/null -w '%{speed_download}\n' "http://$2/16m"
    done >/tmp/rates
    figure "$1" curl_mb_per_s "$(median </tmp/rates | awk '{ printf "%.1f", $1 / 1e6 }')"
    figure "$1" curls_b_per_s "$(tr '\n' ',' </tmp/rates)"
}

# gets SUBJECT ADDRESS
gets() {
    local depth count=10000
    redis-benchmark -h "$2" -t set -n 1000 -q >/dev/null
    for depth in 1 16; do
        figure "$1" "get_p${depth}_per_s" "$(redis-benchmark -h "$2" -t get -n $count -c 50 -P $depth --csv |
            awk -F '","' '/GET/ { print $2 }')"
        count=50000
    done
}
