httpd
for users in 1 10 20 40; do
    said=$(siege -b -c $users -r 25 http://10.0.0.3/100k 2>&1) || true
    echo "$users users: $(echo "$said" | grep -E '^(Transaction rate|Longest)' | tr -s '\t ' ' ' | tr '\n' ' ')"
    echo "$said" | grep -qE '^Failed transactions:[[:space:]]+0$' || fail "siege with $users users: $said"
    echo "$said" | grep -qE "^Transactions:[[:space:]]+$((users * 25)) hits" || fail "siege with $users users: $said"
done
