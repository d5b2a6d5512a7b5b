# What the Linux guest of the case `guests-unikernel` does: redis-benchmark against the unikernel's kv at 10.0.0.20, and curl against its
# httpd at 10.0.0.21, with the library and without.
#
# Figures are `FIGURE plain|fordway c1|c50 SET|GET REQUESTS/S` and `FIGURE plain|fordway 1m curl KB/S`. `guest: HASH FILE SUM` is a
# file that came by rings.

kv=10.0.0.20
httpd=10.0.0.21

# There is nobody at the other end to be told.
look() { shown "$1"; }

# A program that sleeps elsewhere hears of it at its next call.
is_back() { echo ping >&3 && are_fast 0; }

met() { grep -c 'the broker of guest .* is met' /run/fordway/broker.log; }
has_met() { [ "$(met)" -ge "$1" ]; }

# fetch PATH FILE COUNT [COMMAND...]: so many times by one connection of curl's.
fetch() {
    local path=$1 file=$2 count=$3
    shift 3
    "$@" curl -sS --fail -w '%{time_total}\n' $(for i in $(seq "$count"); do echo "-o /tmp/got-$i http://$httpd/$file"; done) \
        >/tmp/times || fail "curl of $file"
    for i in $(seq "$count"); do cmp /tmp/got-1 "/tmp/got-$i" || fail "the same file twice"; done
    awk -v key="$path $file curl" -v bytes="$(wc -c </tmp/got-1)" '{ s += $1; n++ } END { print "FIGURE", key, int(bytes * n / s / 1024) }' /tmp/times
    echo "guest: HASH $file $(sha256sum </tmp/got-1 | cut -d ' ' -f 1)"
}

ask() {
    local with='fordway run --here --' at=$kv
    until_so 240 redis-cli -h $kv ping
    until_so 240 has_met 2
    figures plain 6379 1 2000
    figures fordway 6379 1 4000 $with
    figures plain 6379 50 10000
    figures fordway 6379 50 20000 $with
    stream stream $with redis-cli -h $kv
    # Each has a link of its own, which is over with it.
    for turn in $(seq 100); do
        [ "$(fordway run --here --require-fast -- redis-cli -h $kv ping 2>&1)" = PONG ] || fail "program $turn has no rings"
    done
    ! grep 'no memory for rings' /run/fordway/broker.log || fail 'grants are missing'
    echo 'guest: 100 programs with rings have come and gone'
    fetch plain 1m 20
    fetch fordway 1m 20 $with
    fetch fordway 100k 20 $with
    $with redis-benchmark -h $kv -t get -c 50 -n 100000000 -q >/dev/null &
    until_so 120 are_fast 50
    look crowd
    # dom0 says now that they may not meet any more.
    until_so 240 are_fast 0
    kill -0 $! || fail 'the crowd has ended'
    echo 'guest: parted'
    kill $!
    wait $!
    redis-cli -h $kv ping | grep -q PONG || fail 'kv does not answer by TCP'
    fetch parted 1m 4 $with
    # And that they may again.
    until_so 240 has_met 4
    $with redis-benchmark -h $kv -t get -c 50 -n 100000000 -q >/dev/null &
    until_so 240 are_fast 50
    echo 'guest: met again'
    shown again
    kill $!
    wait $!
    fetch fordway 1k 20 $with
    # The kv is put away meanwhile, and is another domain when it is back. One connection stays: it goes back to TCP, and takes its
    # link with it, or the kv would not be put away.
    mkfifo /tmp/ask
    $with redis-cli -h $kv </tmp/ask >/tmp/answers &
    exec 3>/tmp/ask
    for i in $(seq 20); do echo ping >&3; done
    until_so 120 are_fast 1
    echo 'guest: saves'
    until_so 300 is_back
    echo 'guest: back on TCP'
    until_so 300 has_met 6
    exec 3>&-
    kill $!
    wait $!
    rm /tmp/ask
    redis-cli -h $kv ping | grep -q PONG || fail 'kv does not answer'
    stream restored $with redis-cli -h $kv
    echo 'guest: done'
}

start_broker
ask
