# Unmodified programs in two Linux guests, each with a broker of its own: redis, its benchmark and its
# client. dom0 says that the two may meet, and what addresses they have. What they do is in
# programs/guests-programs.sh; what came of it is on their consoles, in lines `guest: ...`.
program_guests guests-programs server:8 client:9

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
has_said client 'guest: shown forked' 300
/job/fordway guests part client
has_said client 'guest: parted'
$meet
has_said client 'guest: done'
has_said server 'guest: shown crowd'
for guest in server client; do
    has_said "$guest" 'guest: fordway guests: status 4'
done
ended
expect 'links of a process that executes itself' "$(console server | grep -c 'refused links lives: 0')" = 1

compared client 'c1 c50' 'SET GET'

# What a guest has left with its peers is seen, and goes.
domain=$(xl domid server)
stop server
expect 'what is left of the server' "$(/job/fordway guests list | grep -c "($domain)")" = 1
/job/fordway guests part client
expect 'all is gone' "$(nodes client | grep -c address || true) $(/job/fordway guests list | grep -c "($domain)" || true)" = '0 0'

rings_of server stream crowd
rings_of client stream crowd forked
stop client
