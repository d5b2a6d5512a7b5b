httpd
said=$(eagerly httperf --hog --server 10.0.0.3 --uri /index.html --num-conns 500 --num-calls 4 2>/dev/null)
echo "$said" | grep -E 'Request rate|Reply status|Errors: total'
echo "$said" | grep -q 'Reply status: 1xx=0 2xx=2000 3xx=0 4xx=0 5xx=0'
echo "$said" | grep -q 'Errors: total 0'
