# The unikernel's kv as the victim of a hostile guest that is the senior, with an honest guest beside it. What they do is in
# programs/guests-unikernel-hostile.sh.
program_guests guests-unikernel-hostile upper:7 client:9
configure victim 10.0.0.8 /job/kv-guests 128 'ip=10.0.0.8/24 gw=10.0.0.1'
echo 'tsc_mode = "native"' >>/run/guests/victim.cfg
start victim
# Not with each other.
/job/fordway guests meet victim=10.0.0.8 upper=10.0.0.7
/job/fordway guests meet victim=10.0.0.8 client=10.0.0.9
for guest in $guests; do xl unpause "$guest"; done
has_said upper 'guest: done' 600
has_said client 'guest: done' 240
ended
console victim | tr -d '\r' | tail -n 20 | sed 's/^/victim: /'
rings_of client last
for name in upper client victim; do stop "$name"; done
