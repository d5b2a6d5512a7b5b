# The programs of the case `guests-programs` with an offer at the first call of each connection, and a redis that forks seven times
# while its clients are on rings. What the guests do is in programs/guests-programs-early.sh.
program_guests guests-programs-early server:8 client:9
/job/fordway guests meet server=10.0.0.8 client=10.0.0.9
xl unpause server
xl unpause client
has_said client 'guest: done' 600
ended
compared client 'c1 c50' 'SET GET'
rings_of server stream crowd forked
rings_of client stream crowd forked
stop server
stop client
