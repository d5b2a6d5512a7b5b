# Two Linux guests measure TCP, libxenvchan and our rings between them (xen/xen-user/examples/pair/measure.rs).
# shellcheck source=../cases/guests.sh
pair_of_guests ' measure'
# Seldom, for each look is work for the one CPU.
for i in $(seq 60); do
    console client | grep -q '^pair: measured' && break
    ! grep -q '^pair: FAILED' /var/log/xen/console/guest-server.log /var/log/xen/console/guest-client.log || break
    sleep 5
done
ended | sed -n 's/^[a-z]*: \(FIGURE .*\)/\1/p'
if ! console client | grep -q '^pair: measured'; then
    ended
    fail 'the guests do not measure all'
fi
stop client
stop server
