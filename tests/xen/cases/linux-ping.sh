linux linux 10.0.0.2
no_loss 1000 -i 0.01 10.0.0.2
no_loss 2000 -f 10.0.0.2
