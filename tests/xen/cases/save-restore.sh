# Put away and taken out again as another domain, in the middle of a transfer.
unikernel saved httpd 10.0.0.13 64
listens 10.0.0.13 80
curl -sS -m 100 --limit-rate 8M http://10.0.0.13/16m >/tmp/got &
curl=$!
sleep 0.3
before=$(xl domid saved)
xl save saved /tmp/saved
wait_gone saved
xl restore /tmp/saved
rm /tmp/saved
expect 'a new domain' "$(xl domid saved)" != "$before"
says saved 'resumed, Elsewhere'
answers 10.0.0.13
wait $curl
expect 'the transfer goes on' "$(hash_of </tmp/got)" = "$(hash_of </job/www/16m)"
fetches 10.0.0.13 1k 100k
# A copy is saved, and the domain goes on.
xl save -c saved /tmp/saved
rm /tmp/saved
says saved 'resumed, Here'
answers 10.0.0.13
fetches 10.0.0.13 1k 100k
expect 'its word' "$(xenstore-read "/local/domain/$(xl domid saved)/data/fordway")" = 'up 10.0.0.13'
stop saved
