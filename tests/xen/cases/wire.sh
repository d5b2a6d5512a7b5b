# What TCP looks like on the wire: handshake, options, order, end, and no packet twice.
httpd
tcpdump -Z root -i xenbr0 --immediate-mode -U -w /tmp/wire.pcap -s 128 'host 10.0.0.3 and tcp' 2>/tmp/tcpdump.log &
capture=$!
for i in $(seq 100); do
    ! grep -q listening /tmp/tcpdump.log || break
    sleep 0.05
done
grep -q listening /tmp/tcpdump.log || fail "$(cat /tmp/tcpdump.log)"
fetches 10.0.0.3 1k 1m
# A closed port.
! (exec 3<>/dev/tcp/10.0.0.3/81) 2>/dev/null || fail 'a closed port accepts'
sleep 0.3
kill $capture
wait $capture || true
python3 /job/wire.py /tmp/wire.pcap 10.0.0.3
