#!/bin/sh
# What Linux guests with programs of ours have in common; what they do in a case is in the file of its name, fw_case=NAME, by their words fw_role=server|client|...
#
# Lines `FIGURE ...` are figures; `guest: RINGS WORD tx N rx N` are bytes that this guest's ends have sent and received by
# rings. A client tells when it is time to look at connections; it tells by a redis of the server's that has no library, and
# has a list for that.
export PATH=/bin:/usr/bin:/usr/sbin
/bin/busybox --install -s /bin
server=10.0.0.8

fail() {
    echo "guest: FAILED: $*"
    exit 1
}

# now_s: sets $now to the seconds since the guest began, which are emulated as well.
now_s() {
    read -r now _ </proc/uptime
    now=${now%.*}
}

# until_so SECONDS COMMAND...: the command has worked.
until_so() {
    local now limit
    now_s
    limit=$((now + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        now_s
        [ $now -lt $limit ] || fail "$*"
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
    echo "guest: refused links $1: $(grep -c 'no memory for rings' /run/fordway/broker.log)"
    echo "guest: shown $1"
}

start_broker() {
    fordway up --detach || fail "fordway up: $(tail -n 3 /run/fordway/broker.log)"
    # Only dom0 says who may meet.
    fordway guests list
    echo "guest: fordway guests: status $?"
}

# serve_or_ask: what a case's file has as `serve` of its server, and as `ask` of its client, behind a broker.
serve_or_ask() {
    start_broker
    case $role in
        server) serve ;;
        *) ask ;;
    esac
}

# looks: whenever the client says so, at the connections.
looks() {
    while word=$(redis-cli -p 6380 blpop look 0 | tail -n 1) && [ -n "$word" ]; do
        shown "$word"
        redis-cli -p 6380 lpush seen "$word" >/dev/null
    done
    fail 'the redis without the library has ended'
}

# are_fast COUNT: so many ends here are on rings.
are_fast() { [ "$(fordway ss --json | grep -c '"path": "fast"')" = "$1" ]; }

# is_fast COUNT: so many at least.
is_fast() { [ "$(fordway ss --json | grep -c '"path": "fast"')" -ge "$1" ]; }

# fast_of PID: how many ends of the process are on rings; has_fast PID COUNT: so many at least.
fast_of() { fordway ss --json | awk -v pid="$1," '/"path":/ { fast = /fast/ } /"pid":/ { count += fast && $2 == pid } END { print count + 0 }'; }
has_fast() { [ "$(fast_of "$1")" -ge "$2" ]; }

# look WORD: both guests look at their connections.
look() {
    shown "$1"
    redis-cli -h $server -p 6380 lpush look "$1" >/dev/null
    [ "$(redis-cli -h $server -p 6380 blpop seen 60 | tail -n 1)" = "$1" ] || fail "the server does not look at $1"
}

lives() { grep -q '^State:[^Z]*$' "/proc/$1/status" 2>/dev/null; }

# serve_both [OPTION...]: redis with the library (port 6379, process $redis) and without (6380).
serve_both() {
    local options='--bind 0.0.0.0 --protected-mode no --appendonly no --dir /tmp'
    fordway run --here -- redis-server --port 6379 --save '' $options "$@" >/tmp/redis.log &
    redis-server --port 6380 --save '' $options >/tmp/plain.log &
    until_so 120 redis-cli -p 6379 ping
    until_so 120 redis-cli -p 6380 ping
    redis=$(redis-cli -p 6379 info server | tr -d '\r' | sed -n 's/^process_id://p')
}

# begin_stream: one connection, which stays, and by `bytes` values each time, and what they are then.
begin_stream() {
    [ -z "$stream" ] || { kill "$stream"; wait "$stream"; }
    rm -f /tmp/ask
    mkfifo /tmp/ask
    : >/tmp/answers
    : >/tmp/wanted
    # Both are emptied.
    fordway run --here -- redis-cli -h $server </tmp/ask >>/tmp/answers &
    stream=$!
    exec 3>/tmp/ask
    turn=0 carried=0
}
bytes() {
    local value now limit
    turn=$((turn + 1))
    for _ in 1 2 3; do
        value=$(head -c 12000 /dev/urandom | base64 -w 0)
        printf 'set key%d %s\nget key%d\n' $turn "$value" $turn >&3
        printf 'OK\n%s\n' "$value" >>/tmp/wanted
    done
    now_s
    limit=$((now + 60))
    until cmp -s /tmp/wanted /tmp/answers; do
        now_s
        [ $now -lt $limit ] || { echo "the stream has stopped, or is wrong: $(wc -c </tmp/answers) of $(wc -c </tmp/wanted) bytes, after $carried"; return 1; }
        sleep 0.1
    done
    carried=$((carried + $(wc -c </tmp/answers)))
    : >/tmp/answers
    : >/tmp/wanted
    echo "right: $carried bytes"
}

# figures PATH PORT CONNECTIONS REQUESTS [COMMAND...]: of the redis at $at, or at the server.
figures() {
    local path=$1 port=$2 connections=$3 requests=$4 at=${at:-$server}
    shift 4
    "$@" redis-benchmark -h "$at" -p "$port" -t set,get -c "$connections" -n "$requests" --csv >/tmp/csv ||
        fail "redis-benchmark on port $port ends with status $?"
    awk -F '"' -v key="$path c$connections" '$2 == "SET" || $2 == "GET" { print "FIGURE", key, $2, $4 }' /tmp/csv
}

# stream WORD COMMAND...: one connection of redis-cli's, which stays: 4 MB each way, in values of 64 KB.
stream() {
    local number value word=$1
    shift
    mkfifo /tmp/ask
    "$@" </tmp/ask >/tmp/answers &
    : >/tmp/wanted
    exec 3>/tmp/ask
    for number in $(seq 64); do
        value=$(head -c 49152 /dev/urandom | base64 -w 0)
        printf 'set key%d %s\nget key%d\n' "$number" "$value" "$number" >&3
        printf 'OK\n%s\n' "$value" >>/tmp/wanted
    done
    until_so 120 cmp -s /tmp/wanted /tmp/answers
    echo "guest: stream of $(wc -c </tmp/answers) bytes each way, all of them right"
    look "$word"
    exec 3>&-
    wait $!
    rm /tmp/ask
}

for word in $(cat /proc/cmdline); do
    case $word in
        fw_case=*) case=${word#fw_case=} ;;
        fw_role=*) role=${word#fw_role=} ;;
    esac
done
. "/cases/$case.sh"
