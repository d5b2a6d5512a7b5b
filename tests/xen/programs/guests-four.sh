# What the four guests of the case `guests-four` do: `server` and `second` have redis with the library (port 6379) and without
# (6380), `client` and `third` ask. First two pairs are at work at once, then three clients with one server, of which
# `second` is one.
#
# Figures are `FIGURE plain|fordway pair|three GET REQUESTS/S`, of each client.

# come WORD, and reached WORD COUNT: guests count themselves, at the server.
come() { redis-cli -h $server -p 6380 incr "$1" >/dev/null; }
reached() { [ "$(redis-cli -h $server -p 6380 get "$1")" -ge "$2" ]; }

serve() {
    local options='--bind 0.0.0.0 --protected-mode no --appendonly no --dir /tmp'
    fordway run --here -- redis-server --port 6379 --save '' $options >/tmp/redis.log &
    redis-server --port 6380 --save '' $options >/tmp/plain.log &
    until_so 240 redis-cli -p 6379 ping
    until_so 240 redis-cli -p 6380 ping
}

# gets PATH WORD AT PORT [COMMAND...]
gets() {
    local path=$1 word=$2 at=$3 port=$4
    shift 4
    "$@" redis-benchmark -h "$at" -p "$port" -t get -c 20 -n 8000 --csv >/tmp/csv || fail "redis-benchmark: status $?"
    awk -F '"' -v key="$path $word" '$2 == "GET" { print "FIGURE", key, $2, $4 }' /tmp/csv
}

# asks WORD AT COUNT: 20 connections, while others, COUNT in all, have as many.
asks() {
    local word=$1 at=$2 count=$3
    until_so 300 redis-cli -h "$at" -p 6379 ping
    until_so 300 redis-cli -h "$at" -p 6380 ping
    come "$word-plain"
    until_so 300 reached "$word-plain" "$count"
    gets plain "$word" "$at" 6380
    come "$word-fordway"
    until_so 300 reached "$word-fordway" "$count"
    gets fordway "$word" "$at" 6379 fordway run --here --
    come "$word-crowd"
    fordway run --here -- redis-benchmark -h "$at" -t get -c 20 -n 100000000 -q >/dev/null &
    looks_at "$word" "$count" 20
    # The servers' looks, too: two pairs, or three clients and one server.
    until_so 300 reached "$word-looked" 4
    kill $!
    wait $!
}

# looks_at WORD COUNT FAST: once all crowds are there, and so many connections are on rings.
looks_at() {
    until_so 600 reached "$1-crowd" "$2"
    until_so 300 are_fast "$3"
    shown "$1"
    come "$1-looked"
}

start_broker
case $role in
    server)
        serve
        looks_at pair 2 20
        looks_at three 3 60
        ;;
    second)
        serve
        looks_at pair 2 20
        asks three $server 3
        ;;
    client)
        asks pair $server 2
        asks three $server 3
        ;;
    third)
        asks pair 10.0.0.10 2
        asks three $server 3
        ;;
esac
echo 'guest: done'
