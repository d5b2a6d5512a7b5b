#!/bin/sh
# What the two guests of the case `guests-programs` do, each by its word fw_role=server|client:
#
#   server: redis twice, with the library (port 6379) and without (6380)
#   client: redis-benchmark against either, a stream whose bytes are compared, 50 connections that stay
#
# The client tells when it is time to look at connections; it tells by the redis without the library, which has
# a list for that. Lines `FIGURE plain|fordway c1|c50 SET|GET REQUESTS/S` are figures; `guest: RINGS WORD tx N rx N`
# are bytes that this guest's ends have sent and received by rings.
export PATH=/bin:/usr/bin
/bin/busybox --install -s /bin
server=10.0.0.8

fail() {
    echo "guest: FAILED: $*"
    exit 1
}

# until_so SECONDS COMMAND...: the command has worked.
until_so() {
    local left=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || fail "$*"
        sleep 0.1
    done
}

# rings: what all ends here have sent and received by rings.
rings() {
    fordway ss --json | awk '/"ring_bytes_tx"/ { tx += $2 } /"ring_bytes_rx"/ { rx += $2 } END { print "tx", tx + 0, "rx", rx + 0 }'
}
has_rings() { rings | grep -q 'tx [1-9].* rx [1-9]'; }

# shown WORD: the connections, as this guest's broker has them.
shown() {
    local left=20
    until has_rings || [ $left = 0 ]; do
        left=$((left - 1))
        sleep 0.1
    done
    fordway ss | tail -n 5 | sed "s/^/guest: ss $1: /"
    echo "guest: RINGS $1 $(rings)"
    echo "guest: shown $1"
}

start_broker() {
    fordway up --detach || fail "fordway up: $(tail -n 3 /run/fordway/broker.log)"
    # Only dom0 says who may meet.
    fordway guests list
    echo "guest: fordway guests: status $?"
}

serve() {
    local options='--bind 0.0.0.0 --protected-mode no --appendonly no --dir /tmp'
    fordway run --here -- redis-server --port 6379 --save '' $options >/tmp/redis.log &
    redis-server --port 6380 --save '' $options >/tmp/plain.log &
    until_so 30 redis-cli -p 6379 ping
    until_so 30 redis-cli -p 6380 ping
    echo 'guest: serves'
    while word=$(redis-cli -p 6380 blpop look 0 | tail -n 1) && [ -n "$word" ]; do
        shown "$word"
        redis-cli -p 6380 lpush seen "$word" >/dev/null
    done
    fail 'the redis without the library has ended'
}

# are_fast COUNT: so many ends here are on rings.
are_fast() { [ "$(fordway ss --json | grep -c '"path": "fast"')" = "$1" ]; }
has_met_again() { [ "$(grep -c 'the broker of guest .* is met' /run/fordway/broker.log)" = 2 ]; }

is_saved() {
    redis-cli -h $server -p 6379 info persistence | tr -d '\r' >/tmp/saving
    grep -q '^rdb_bgsave_in_progress:0' /tmp/saving && grep -q '^rdb_last_bgsave_status:ok' /tmp/saving &&
        grep -q '^rdb_saves:[1-9]' /tmp/saving
}

# look WORD: both guests look at their connections.
look() {
    shown "$1"
    redis-cli -h $server -p 6380 lpush look "$1" >/dev/null
    [ "$(redis-cli -h $server -p 6380 blpop seen 60 | tail -n 1)" = "$1" ] || fail "the server does not look at $1"
}

# figures PATH PORT CONNECTIONS REQUESTS [COMMAND...]
figures() {
    local path=$1 port=$2 connections=$3 requests=$4
    shift 4
    "$@" redis-benchmark -h $server -p "$port" -t set,get -c "$connections" -n "$requests" --csv >/tmp/csv ||
        fail "redis-benchmark on port $port ends with status $?"
    awk -F '"' -v key="$path c$connections" '$2 == "SET" || $2 == "GET" { print "FIGURE", key, $2, $4 }' /tmp/csv
}

# One connection of redis-cli's, which stays: 4 MB each way, in values of 64 KB.
stream() {
    local number value
    mkfifo /tmp/ask
    fordway run --here -- redis-cli -h $server </tmp/ask >/tmp/answers &
    exec 3>/tmp/ask
    for number in $(seq 64); do
        value=$(head -c 49152 /dev/urandom | base64 -w 0)
        printf 'set key%d %s\nget key%d\n' "$number" "$value" "$number" >&3
        printf 'OK\n%s\n' "$value" >>/tmp/wanted
    done
    until_so 30 cmp -s /tmp/wanted /tmp/answers
    echo "guest: stream of $(wc -c </tmp/answers) bytes each way, all of them right"
    look stream
    exec 3>&-
    wait $!
}

ask() {
    until_so 60 redis-cli -h $server -p 6379 ping
    until_so 60 redis-cli -h $server -p 6380 ping
    figures plain 6380 1 2000
    figures fordway 6379 1 4000 fordway run --here --
    figures plain 6380 50 10000
    figures fordway 6379 50 20000 fordway run --here --
    stream
    fordway run --here -- redis-benchmark -h $server -t get -c 50 -n 100000000 -q >/dev/null &
    until_so 30 are_fast 50
    look crowd
    # A fork of the server, which has no peer's memory.
    redis-cli -h $server -p 6379 bgsave
    until_so 30 is_saved
    echo "guest: saved"
    until_so 30 are_fast 50
    shown forked
    # dom0 says now that the two may not meet any more.
    until_so 60 are_fast 0
    kill -0 $! || fail 'the crowd has ended'
    echo 'guest: parted'
    kill $!
    wait $!
    # And that they may again.
    until_so 60 has_met_again
    fordway run --here -- redis-benchmark -h $server -t get -c 50 -n 100000000 -q >/dev/null &
    until_so 60 are_fast 50
    echo 'guest: met again'
    kill $!
    wait $!
    echo 'guest: done'
}

start_broker
for word in $(cat /proc/cmdline); do
    case $word in
        fw_role=server) serve ;;
        fw_role=client) ask ;;
    esac
done
