# The second pings the first over the bridge, and tells on its console.
httpd
unikernel pinger httpd 10.0.0.6 64 ping=10.0.0.3
says pinger 'ping 10.0.0.3: 10.0.0.3 answered'
fetches 10.0.0.6 1k
stop pinger
