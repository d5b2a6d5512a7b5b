# More unmodified programs in two Linux guests: nginx with ab(1), iperf3. What they do is in programs/guests-others.sh.
program_guests guests-others server:8 client:9
/job/fordway guests meet server=10.0.0.8 client=10.0.0.9
xl unpause server
xl unpause client
has_said client 'guest: done' 600
ended
compared client '1k-c1 1k-c50 1m-c4' nginx
compared client 'out back' iperf3
rings_of server nginx iperf3
rings_of client nginx iperf3
stop server
stop client
