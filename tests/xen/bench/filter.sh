# The same image without rules and with 100, each of which looks at every packet and none
# of which is met.
unikernel filtered httpd-filter 10.0.0.16
listens 10.0.0.16 80
pages filter0 10.0.0.16
{
    echo 'table inet t {'
    echo '    chain in {'
    echo '        type filter hook input priority 0; policy accept;'
    for number in $(seq 100); do
        echo "        ip saddr 10.1.0.$number tcp dport 80 drop"
    done
    echo '    }'
    echo '}'
} >/tmp/hundred.nft
rules filtered /tmp/hundred.nft
pages filter100 10.0.0.16
stop filtered
