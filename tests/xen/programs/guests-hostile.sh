# What the guests of the case `guests-hostile` do, each by its word fw_role:
#
#   server        the victim: a broker, redis with the library (port 6379) and without (6380)
#   client        an honest guest with a broker: one connection by rings, which is used again at each look
#   upper, lower  hostile guests (xen/xen-user/examples/hostile.rs) above and below the victim by domain id
#
# dom0 tells each what to do next by a list of the redis without the library, and is answered by another one.
begin_broker() {
    start_broker
    broker=$(pidof fordway)
}
plain() { redis-cli -h $server -p 6380 "$@"; }

lives() { grep -q '^State:[^Z]*$' "/proc/$1/status" 2>/dev/null; }
# bounded COMMAND...: it works, and within ten seconds.
bounded() { timeout 10 "$@" >/tmp/said 2>&1 || { echo "$* does not answer: $(tail -n 2 /tmp/said)"; return 1; }; }

# Of a process: VmRSS in kB, and descriptors.
rss() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }
descriptors() { ls "/proc/$1/fd" | wc -l; }
log_bytes() { wc -c </run/fordway/broker.log; }

serve() {
    local options='--bind 0.0.0.0 --protected-mode no --appendonly no --dir /tmp'
    begin_broker
    fordway run --here -- redis-server --port 6379 --save '' $options >/tmp/redis.log &
    redis-server --port 6380 --save '' $options >/tmp/plain.log &
    until_so 120 redis-cli -p 6379 ping
    until_so 120 redis-cli -p 6380 ping
    redis=$(redis-cli -p 6379 info server | tr -d '\r' | sed -n 's/^process_id://p')
    echo "$role: serves"
}

# look: whether broker and redis are well, and how large: `well RSS DESCRIPTORS REDIS_DESCRIPTORS LOG FREE_KB`.
server_looks() {
    lives "$broker" || { echo "the broker is gone: $(tail -n 3 /run/fordway/broker.log)"; return; }
    lives "$redis" || { echo "redis is gone"; return; }
    bounded fordway domain list || return
    bounded fordway ss || return
    bounded redis-cli -p 6379 ping || return
    echo "well $(rss "$broker") $(descriptors "$broker") $(descriptors "$redis") $(log_bytes) $(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)"
}

# One connection, which stays: a value each time, and what it is then.
begin_stream() {
    mkfifo /tmp/ask
    fordway run --here -- redis-cli -h $server </tmp/ask >/tmp/answers &
    exec 3>/tmp/ask
    : >/tmp/wanted
    turn=0
}
bytes() {
    local value left=100
    turn=$((turn + 1))
    for _ in 1 2 3; do
        value=$(head -c 12000 /dev/urandom | base64 -w 0)
        printf 'set key%d %s\nget key%d\n' $turn "$value" $turn >&3
        printf 'OK\n%s\n' "$value" >>/tmp/wanted
    done
    until cmp -s /tmp/wanted /tmp/answers; do
        left=$((left - 1))
        [ $left -gt 0 ] || { echo "the stream has stopped, or is wrong: $(wc -c </tmp/answers) of $(wc -c </tmp/wanted) bytes"; return 1; }
        sleep 0.1
    done
    echo "right: $(wc -c </tmp/answers) bytes"
}
client_looks() {
    bytes >/tmp/bytes || { cat /tmp/bytes; return; }
    bounded fordway domain list || return
    echo "well $(rss "$broker") $(descriptors "$broker") $(fordway ss --json | grep -c '"path": "fast"')"
}

# follow COMMAND: what dom0 tells this guest, one after another.
follow() {
    while words=$(plain blpop "$role" 0 | tail -n 1) && [ -n "$words" ]; do
        "$1" $words >/tmp/answer
        sed "s/^/$role: /" /tmp/answer
        plain lpush "$role-done" "$(tail -n 1 /tmp/answer)" >/dev/null
    done
    fail 'the redis without the library has ended'
}
server_does() { case $1 in look) server_looks ;; log) tail -n "$2" /run/fordway/broker.log ;; *) "$@" 2>&1 ;; esac }
client_does() { case $1 in look) client_looks ;; *) "$@" 2>&1 ;; esac }

case $role in
    server)
        serve
        follow server_does
        ;;
    client)
        until_so 240 redis-cli -h $server -p 6380 ping
        begin_broker
        begin_stream
        follow client_does
        ;;
    *)
        until_so 240 redis-cli -h $server -p 6380 ping
        echo "$role: ready"
        follow hostile
        ;;
esac
