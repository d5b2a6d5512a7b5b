kv
cli() { timeout 20 redis-cli -h 10.0.0.4 "$@"; }
is() {
    local expected=$1 got
    shift
    got=$(cli "$@")
    expect "$*" "$got" = "$expected"
}
is PONG PING
is word ECHO word
is OK SET a 1
is 1 GET a
is 2 INCR a
is 1 DECR a
is 3 APPEND a 23
is 123 GET a
is '' GET none
is OK MSET x 1 y 2
is $'1\n\n2' MGET x none y
is 2 EXISTS x y none
is 2 DEL x y
is -1 TTL a
is 1 EXPIRE a 1
is 1 TTL a
sleep 1.2
is '' GET a
is -2 TTL a
is OK SET 'with space' "$(head -c 3000 /dev/zero | tr '\0' z)"
expect 'a long value' "$(cli GET 'with space' | wc -c)" = 3001
cli INFO | grep -q redis_version
cli NOSUCH | grep -qi err
cli -3 PING | grep -q PONG
seq 2000 | sed 's/.*/SET key& value&/' | cli >/dev/null
is value1234 GET key1234
