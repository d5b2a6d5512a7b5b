# What the two guests of the case `guests-namespaces` do. Each has a network namespace, domain `inner`, at 10.0.8.2 or
# 10.0.9.2, which it routes to; the other one has a route there.
#
#   server: redis in its namespace, with the library (port 6379) and without (6380), and both outside it
#   client: redis-benchmark from outside its namespace and from inside, against either of the server's, and streams
#           whose bytes are compared
#
# Figures are `FIGURE plain|fordway c1|c50 SET|GET REQUESTS/S`, from inside to inside.

inside='/usr/bin/ip netns exec inner'
# busybox' shell would take its own.
ip() { /usr/bin/ip "$@"; }

# namespace OWN_NETWORK OTHER OTHER_NETWORK: routed, and a domain of the broker's.
namespace() {
    ip netns add inner
    ip link add outer type veth peer name eth0 netns inner
    ip addr add "$1.1/28" dev outer
    ip link set outer up
    ip -n inner addr add "$1.2/28" dev eth0
    ip -n inner link set lo up
    ip -n inner link set eth0 up
    ip -n inner route add default via "$1.1"
    ip route add "$3.0/28" via "$2"
    echo 1 >/proc/sys/net/ipv4/ip_forward
    $inside sleep 100000 &
    # Not before it is there.
    until_so 60 sh -c "[ \$(readlink /proc/$!/ns/net) != \$(readlink /proc/self/ns/net) ]"
    fordway domain attach inner --ip "$1.2" --pid $! || fail "fordway domain attach: status $?"
}

serve() {
    local options='--protected-mode no --appendonly no --dir /tmp'
    namespace 10.0.8 10.0.0.9 10.0.9
    fordway run --here -- redis-server --bind 0.0.0.0 --port 6379 --save '' $options >/tmp/redis.log &
    redis-server --bind 0.0.0.0 --port 6380 --save '' $options >/tmp/plain.log &
    $inside fordway run --here -- redis-server --bind 10.0.8.2 --port 6379 --save '' $options >/tmp/inner.log &
    $inside redis-server --bind 10.0.8.2 --port 6380 --save '' $options >/tmp/inner-plain.log &
    for at in 127.0.0.1 10.0.8.2; do
        until_so 120 redis-cli -h $at -p 6379 ping
        until_so 120 redis-cli -h $at -p 6380 ping
    done
    echo 'guest: serves'
    looks
}

# crowd WORD COMMAND...: 20 connections, looked at on both sides.
crowd() {
    local word=$1
    shift
    "$@" -t get -c 20 -n 100000000 -q >/dev/null &
    until_so 240 are_fast 20
    look "$word"
    kill $!
    wait $!
    until_so 120 are_fast 0
}

has_heard_again() { [ "$(grep -c 'dom0: guest .*,10.0.8.0/28, may be met' /run/fordway/broker.log)" -ge 2 ]; }

ask() {
    local inner=10.0.8.2 with='fordway run --here --'
    namespace 10.0.9 10.0.0.8 10.0.8
    for at in $server $inner; do
        until_so 240 redis-cli -h $at -p 6379 ping
        until_so 240 redis-cli -h $at -p 6380 ping
    done
    crowd out-in $with redis-benchmark -h $inner
    crowd in-out $inside $with redis-benchmark -h $server
    crowd in-in $inside $with redis-benchmark -h $inner
    stream stream-out-in $with redis-cli -h $inner
    stream stream-in-in $inside $with redis-cli -h $inner
    at=$inner
    figures plain 6380 1 2000 $inside
    figures fordway 6379 1 4000 $inside $with
    figures plain 6380 50 10000 $inside
    figures fordway 6379 50 20000 $inside $with
    # dom0 says that the two have their own addresses alone.
    $inside $with redis-benchmark -h $inner -t get -c 20 -n 100000000 -q >/dev/null &
    until_so 240 are_fast 20
    echo 'guest: all addresses'
    until_so 240 are_fast 0
    kill -0 $! || fail 'the crowd has ended'
    $with redis-benchmark -h $server -t get -c 7 -n 100000000 -q >/dev/null &
    until_so 240 are_fast 7
    echo 'guest: own addresses'
    # And those of the namespaces again, which this broker has heard of before somebody connects.
    until_so 240 has_heard_again
    $inside $with redis-benchmark -h $inner -t get -c 20 -n 100000000 -q >/dev/null &
    until_so 240 are_fast 27
    # A namespace that is no domain any more has no address; what one crowd had before is on TCP.
    fordway domain rm inner --force || fail "fordway domain rm: status $?"
    until_so 240 are_fast 7
    kill -0 $! || fail 'the crowd has ended'
    echo 'guest: done'
}

serve_or_ask
