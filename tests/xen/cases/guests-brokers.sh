# Brokers of two Linux guests are killed at each step of a meeting, and started anew: a connection's bytes come out as they should,
# and have rings again in the end. What the guests do is in programs/guests-brokers.sh.
program_guests guests-brokers server:8 client:9
/job/fordway guests meet server=10.0.0.8 client=10.0.0.9
for guest in $guests; do xl unpause "$guest"; done
has_said client 'guest: done' 600
ended
rings_of client end
rings_of server end
for guest in $guests; do stop "$guest"; done
