# No address on the command line: dnsmasq leases one, and knows a name.
cat >/tmp/dnsmasq.conf <<'CONF'
interface=xenbr0
bind-interfaces
dhcp-range=10.0.0.100,10.0.0.120,1h
dhcp-host=00:16:3e:00:00:12,10.0.0.110
dhcp-leasefile=/tmp/dnsmasq.leases
address=/www.fordway.test/10.9.8.7
no-resolv
no-hosts
user=root
pid-file=/run/dnsmasq.pid
CONF
dnsmasq --conf-file=/tmp/dnsmasq.conf
archive
configure leased 10.0.0.18 /job/httpd 32 'lookup=www.fordway.test' /tmp/small.tar
create leased
xl unpause leased
says leased 'serving at 10.0.0.110:80, by DHCP'
says leased 'www.fordway.test is at [10.9.8.7]'
cat /tmp/dnsmasq.leases
fetches 10.0.0.110 1k 100k
stop leased
kill "$(cat /run/dnsmasq.pid)"
