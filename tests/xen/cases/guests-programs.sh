# Unmodified programs in two Linux guests, each with a broker of its own: redis, its benchmark and its
# client. dom0 says that the two may meet, and what addresses they have. What they do is in
# programs/guest.sh; what came of it is on their consoles, in lines `guest: ...`.
cat /job/linux/small.cpio /job/linux/user.cpio /job/linux/programs.cpio /job/fordway.cpio >/tmp/programs.cpio

for guest in server:8 client:9; do
    name=${guest%:*} address=10.0.0.${guest#*:}
    configure "$name" "$address" /job/linux/kernel 256 \
        "console=hvc0 quiet panic=-1 fw_ip=$address fw_role=$name" /tmp/programs.cpio
    # As in the case `guests`.
    echo 'tsc_mode = "native"' >>"/run/guests/$name.cfg"
    create "$name"
done
rm /tmp/programs.cpio

# Who may meet. The guests have not begun yet.
# nodes NAME: what dom0 has told the guest, with permissions.
nodes() { xenstore-ls -fp "/local/domain/$(xl domid "$1")/fordway"; }
# refused STATUS WORDS...: fordway guests ends with that status, and says one line.
refused() {
    local expected=$1 said status=0
    shift
    said=$(/job/fordway guests "$@" 2>&1) || status=$?
    expect "guests $*: $said" $status = "$expected"
    expect "lines of: $said" "$(echo "$said" | wc -l)" = 1
}
meet='/job/fordway guests meet server=10.0.0.8 client=10.0.0.9'
$meet
/job/fordway guests list
said=$(nodes server; nodes client)
echo "$said"
for guest in server client; do
    domain=$(xl domid "$guest")
    expect "nodes of $guest" "$(nodes "$guest" | wc -l)" = 3
    expect "nodes of $guest that it alone may read" "$(nodes "$guest" | grep -c "(n0,r$domain)\$")" = 3
done
$meet
expect 'the same again' "$(nodes server; nodes client)" = "$said"
refused 7 meet server=10.0.0.8 nobody=10.0.0.7
refused 7 meet server=10.0.0.8 Domain-0=10.0.0.1
refused 7 part nobody
/job/fordway guests part client
expect 'what is left' "$(nodes server | wc -l) $(nodes client | wc -l)" = '2 1'
$meet
expect 'what came back' "$(nodes server; nodes client)" = "$said"

xl unpause server
xl unpause client
has_said client 'guest: shown forked' 150
/job/fordway guests part client
has_said client 'guest: parted'
$meet
has_said client 'guest: done'
has_said server 'guest: shown crowd'
for guest in server client; do
    has_said "$guest" 'guest: fordway guests: status 4'
done
ended

# per_s PATH CONNECTIONS COMMAND: requests in a second, as the client says.
per_s() { console client | tr -d '\r' | awk -v key="$1 $2 $3" '/^FIGURE / && $2 " " $3 " " $4 == key { print $5 }'; }
for connections in c1 c50; do
    for command in SET GET; do
        plain=$(per_s plain $connections $command) fordway=$(per_s fordway $connections $command)
        expect "figures of $connections $command: $plain, $fordway" -n "$plain" -a -n "$fordway"
        echo "$connections $command: $plain requests/s without the library, $fordway with it," \
            "$(awk "BEGIN { printf \"%.2f\", $fordway / $plain }") times"
    done
done

# What a guest has left with its peers is seen, and goes.
domain=$(xl domid server)
stop server
expect 'what is left of the server' "$(/job/fordway guests list | grep -c "($domain)")" = 1
/job/fordway guests part client
expect 'all is gone' "$(nodes client | grep -c address || true) $(/job/fordway guests list | grep -c "($domain)" || true)" = '0 0'

# Bytes went by rings, each way, as both brokers have it.
for place in stream:server stream:client crowd:server crowd:client forked:client; do
    word=${place%:*} guest=${place#*:}
    line=$(console "$guest" | tr -d '\r' | grep "^guest: RINGS $word ") || fail "$guest says nothing of $word"
    for bytes in $(echo "$line" | awk '{ print $5, $7 }'); do
        expect "bytes by rings, $guest: $line" "$bytes" -gt 0
    done
done
stop client
