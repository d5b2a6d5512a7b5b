# What the guests of the case `guests-dying` do, each by its word fw_role:
#
#   server   survives: a broker, redis with the library (port 6379) and without (6380); and programs that ask the guests that die
#   client   survives: one connection to the server by rings, which is used again at each look
#   any other: dies: a broker and redis with the library, to which the server's programs send and from which they receive
#
# dom0 tells the survivors what to do next by a list of the redis without the library, and is answered by another one.
plain() { redis-cli -h $server -p 6380 "$@"; }
descriptors() { ls "/proc/$1/fd" | wc -l; }
# Event channels of programs; those of devices are among them, and stay.
channels() { grep -c xen-dyn /proc/interrupts; }

# transfers HOST...: of each, requests and answers of 64 KB, and requests without an end.
transfers() {
    local host
    hosts=$#
    for host in "$@"; do
        until_so 240 redis-cli -h "$host" ping
        until_so 240 grep -q "the broker of guest $(guest_of "$host") is met" /run/fordway/broker.log
        fordway run --here -- redis-benchmark -h "$host" -c 4 -d 65536 -t set,get -n 100000000 -q >/dev/null 2>&1 &
        while cat /tmp/requests; do :; done | fordway run --here -- redis-cli -h "$host" --pipe >/dev/null 2>&1 &
    done
    until_so 240 is_fast $((5 * hosts + 1))
    echo 'well'
}
guest_of() { sed -n "s/.*dom0: guest \([0-9]*\), $1, may be met.*/\1/p" /run/fordway/broker.log | tail -n 1; }

# dead: how long it took until only the client's connection was on rings; what is left then.
dead() {
    local left=20 pid
    until are_fast 1; do
        left=$((left - 1))
        [ $left -gt 0 ] || { echo "on rings still: $(fordway ss | grep -c fast)"; return; }
        sleep 0.1
    done
    for pid in $(pidof redis-benchmark redis-cli); do
        # The client's connection is another guest's; here all of them ask who has died.
        kill -9 "$pid" 2>/dev/null
    done
    ! grep 'no memory for rings' /run/fordway/broker.log || { echo 'grants are missing'; return; }
    echo "well $((20 - left)) $(descriptors "$broker") $(descriptors "$redis") $(channels)"
}
client_looks() {
    bytes >/tmp/bytes || { cat /tmp/bytes; return; }
    is_fast 1 || { echo 'not on rings'; return; }
    echo "well $(tail -n 1 /tmp/bytes)"
}

# follow: what dom0 tells this guest, one after another.
follow() {
    while words=$(plain blpop "$role" 0 | tail -n 1) && [ -n "$words" ]; do
        $words >/tmp/answer 2>&1
        sed "s/^/$role: /" /tmp/answer
        plain lpush "$role-done" "$(tail -n 1 /tmp/answer)" >/dev/null
    done
    fail 'the redis without the library has ended'
}

start_broker
case $role in
    server)
        broker=$(pidof fordway)
        value=$(head -c 49152 /dev/urandom | base64 -w 0)
        for i in $(seq 8); do printf 'set key%d %s\r\n' "$i" "$value"; done >/tmp/requests
        serve_both
        follow
        ;;
    client)
        until_so 240 redis-cli -h $server -p 6380 ping
        begin_stream
        follow
        ;;
    *)
        serve_both
        echo "guest: $role serves"
        sleep 100000
        ;;
esac
