# Without rules and with 100 that the packets pass one after another.
echo 'filter: to be measured'
