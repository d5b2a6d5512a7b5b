# Namespaces of two Linux guests, each with an address that its guest routes to it: dom0 says that these belong to
# the guests. What the guests do is in programs/guests-namespaces.sh.
program_guests guests-namespaces server:8 client:9
meet='/job/fordway guests meet server=10.0.0.8,10.0.8.0/28 client=10.0.0.9,10.0.9.0/28'
$meet
/job/fordway guests list
expect 'the client has the addresses' "$(/job/fordway guests list | grep -c '10.0.0.9,10.0.9.0/28')" = 1

xl unpause server
xl unpause client
has_said client 'guest: all addresses' 400
/job/fordway guests meet server=10.0.0.8 client=10.0.0.9
has_said client 'guest: own addresses'
$meet
has_said client 'guest: done'
ended
compared client 'c1 c50' 'SET GET'
for guest in server client; do
    rings_of $guest out-in in-out in-in stream-out-in stream-in-in
done
stop server
stop client
