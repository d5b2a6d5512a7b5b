httpd
for users in 1 10 20 40; do
    said=$(siege -b -c $users -r 25 http://10.0.0.3/100k 2>&1) || true
    echo "$users users: $(echo "$said" | grep -oE '"(transaction_rate|failed_transactions|successful_transactions)":[^,]*' | tr -s '\t ' ' ' | tr '\n' ' ')"
    echo "$said" | grep -qE "\"failed_transactions\":[[:space:]]*0" || fail "siege with $users users: $said"
    echo "$said" | grep -qE "\"successful_transactions\":[[:space:]]*$((users * 25))" || fail "siege with $users users: $said"
done
