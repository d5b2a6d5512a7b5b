# dom0 gives rules and takes them away while the guest runs.
unikernel filtered httpd-filter 10.0.0.16
listens 10.0.0.16 80
fetches 10.0.0.16 1k
echo 'no rules at all' >/tmp/wrong.fwnf
rules filtered /job/closed.fwnf
! curl -s -o /dev/null -m 2 http://10.0.0.16/1k || fail 'a dropped port answers'
answers 10.0.0.16
rules filtered /job/refused.fwnf
status=0
curl -s -o /dev/null -m 2 http://10.0.0.16/1k || status=$?
expect 'refused at once' $status = 7
# Wrong ones change nothing.
rules filtered /tmp/wrong.fwnf
status=0
curl -s -o /dev/null -m 2 http://10.0.0.16/1k || status=$?
expect 'the rules before are in force' $status = 7
rules filtered /job/open.fwnf
fetches 10.0.0.16 1k 100k

# The wall clock of rules goes on while the domain is put away.
xl save filtered /tmp/saved
wait_gone filtered
sleep 5
xl restore /tmp/saved
rm /tmp/saved
says filtered 'resumed, Elsewhere'
python3 /job/clock.py /job/past.fwnf >/tmp/past.fwnf
rules filtered /tmp/past.fwnf
# It is looked at once a second.
for i in $(seq 60); do
    ! curl -s -o /dev/null -m 2 http://10.0.0.16/1k || break
    sleep 0.02
done
fetches 10.0.0.16 1k
stop filtered

# Rules of the ramdisk are in force from the first frame on, and so are those that dom0 has
# written before the start; the latter count.
mkdir -p /tmp/ruled
cp /job/www/1k /tmp/ruled
cp /job/refused.fwnf /tmp/ruled/rules.fwnf
tar --format=ustar -cf /tmp/ruled.tar -C /tmp/ruled .
configure ruled 10.0.0.16 /job/httpd-filter 64 'ip=10.0.0.16/24 gw=10.0.0.1' /tmp/ruled.tar
start ruled
says ruled 'rules: 1 tables in force'
status=0
curl -s -o /dev/null -m 2 http://10.0.0.16/1k || status=$?
expect 'refused by the ramdisk' $status = 7
stop ruled
create ruled
give_rules ruled /job/open.fwnf
xl unpause ruled
answers 10.0.0.16
listens 10.0.0.16 80
fetches 10.0.0.16 1k
stop ruled
