# A guest is destroyed in the middle of transfers, 51 times; the other guests have to be none the worse for it. An elder
# one, the senior of those that survive, is the first; those after it are their juniors, two at a time. What they do is in
# programs/guests-dying.sh.
program_guests guests-dying elder:7 server:8 client:9
survivors='server client'
plain() { redis-cli -h 10.0.0.8 -p 6380 "$@"; }
all_said() {
    local name
    for name in $survivors; do
        console "$name" | tr -d '\r' | tail -n 25 | sed "s/^/$name| /"
    done
}
# asks GUEST WORDS...: what it says at the end, which begins with `well`.
asks() {
    local guest=$1
    shift
    plain lpush "$guest" "$*" >/dev/null
    said=$(plain blpop "$guest-done" 120 | tail -n 1)
    case $said in well*) ;; *) all_said; fail "$guest, $*: ${said:-no answer}" ;; esac
}
# Domains that are gone but for pages of theirs that somebody has mapped.
zombies() { xl list | grep -c '(null)' || true; }
# die NAME:NUMBER...: these, together, while the server's programs send to them and receive from them.
die() {
    local guest hosts= left=20
    for guest in "$@"; do hosts="$hosts 10.0.0.${guest#*:}"; done
    asks server transfers $hosts
    for guest in "$@"; do xl destroy "${guest%:*}"; done
    count=$((count + $#))
    asks server dead
    took="$took $(echo "$said" | cut -d ' ' -f 2)"
    # The programs that it has killed are buried by now, or a little later; what leaks stays.
    for look in 1 2 3 4 5; do
        asks server dead
        set -- $said
        after="$3 $4 $5"
        [ "$count" -gt 3 ] || before=$after
        [ "$after" != "$before" ] || break
        echo "look $look after $count: $after"
    done
    expect "descriptors of broker and redis, event channels after $count: $after, before: $before" "$after" = "$before"
    asks client client_looks
    while [ "$(zombies)" != 0 ]; do
        left=$((left - 1))
        [ $left -gt 0 ] || { xl list; fail 'a destroyed guest has pages that are mapped'; }
        sleep 0.1
    done
}
count=0 before= took=

/job/fordway guests meet elder=10.0.0.7 server=10.0.0.8 client=10.0.0.9
for guest in $guests; do xl unpause "$guest"; done
for i in $(seq 600); do
    [ "$(plain ping 2>/dev/null)" != PONG ] || break
    sleep 0.1
done
asks client client_looks
die elder:7
while [ $count -lt 50 ]; do
    program_guests guests-dying first:10 second:11
    /job/fordway guests meet server=10.0.0.8 first=10.0.0.10
    /job/fordway guests meet server=10.0.0.8 second=10.0.0.11
    for guest in $guests; do xl unpause "$guest"; done
    die first:10 second:11
    # What is left of them with their peers goes with the next word about the server.
    /job/fordway guests meet server=10.0.0.8 client=10.0.0.9
done
all_said
echo "$count destroyed; until nothing of them was on rings, in 0.1 s: $took"
for guest in $survivors; do stop "$guest"; done
