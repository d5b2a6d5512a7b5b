httpd
fetches 10.0.0.3 1k 100k
curl -sS --fail -m 10 http://10.0.0.3/profile | head -n 40
curl -sS --fail -m 10 http://10.0.0.3/profile.json | python3 -m json.tool >/dev/null
