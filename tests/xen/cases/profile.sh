# An image of its own: the ticks are compiled in.
unikernel profile profile 10.0.0.15 64
listens 10.0.0.15 80
fetches 10.0.0.15 1k 100k
curl -sS --fail -m 10 http://10.0.0.15/profile >/tmp/profile
head -n 12 /tmp/profile
grep -q stack-receive /tmp/profile
curl -sS --fail -m 10 http://10.0.0.15/profile.json | python3 -m json.tool >/dev/null
stop profile
