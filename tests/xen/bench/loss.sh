# Behind a link of 100 Mbit/s and 2 ms each way, which loses a part of the frames each way: 2 MB by curl.
#
#   curl in a namespace ── veth ── bridge ── vif ── guest
#
# tbf cuts trains before netem loses anything, so that frames are lost one by one.
link() {
    tc qdisc replace dev "$1" root handle 1: tbf rate 100mbit burst 3000 limit 4mb
    tc qdisc replace dev "$1" parent 1:1 handle 10: netem delay 2ms loss "$2%" limit 10000
}

# lossy SUBJECT NAME ADDRESS
lossy() {
    local lost turn
    # No request waits for ARP.
    ip -n far neigh replace "$3" lladdr "$(mac "$3")" dev far0
    for lost in 0 1 5; do
        link near "$lost"
        link "$2" "$lost"
        for turn in $(seq 9); do
            ip netns exec far curl -sS --fail -m 120 -o /dev/null -w '%{speed_download}\n' "http://$3/2m"
        done >/tmp/rates
        figure "$1" "lost${lost}_mb_per_s" "$(median </tmp/rates | awk '{ printf "%.2f", $1 / 1e6 }')"
        figure "$1" "lost${lost}_b_per_s" "$(tr '\n' ',' </tmp/rates)"
    done
}

ip netns add far
ip link add near type veth peer name far0 netns far
ip link set near master xenbr0 up
ip -n far addr add 10.0.0.100/24 dev far0
ip -n far link set far0 up
archive
configure httpd 10.0.0.3 /job/httpd 64 'ip=10.0.0.3/24 gw=10.0.0.1' /tmp/www.tar
start httpd
listens 10.0.0.3 80
lossy httpd httpd 10.0.0.3
stop httpd
linux servers 10.0.0.5 nginx
lossy nginx servers 10.0.0.5
stop servers
ip link del near
ip netns del far
