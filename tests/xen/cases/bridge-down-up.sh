httpd
curl -sS -m 60 --limit-rate 4M http://10.0.0.3/16m >/tmp/got &
curl=$!
sleep 0.5
ip link set xenbr0 down
sleep 2
ip link set xenbr0 up
ip neigh replace 10.0.0.3 lladdr "$(mac 10.0.0.3)" dev xenbr0
ip -6 addr add fd00::1/64 dev xenbr0 nodad 2>/dev/null || true
answers 10.0.0.3
wait $curl
expect 'the transfer goes on' "$(hash_of </tmp/got)" = "$(hash_of </job/www/16m)"
