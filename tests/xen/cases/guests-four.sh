# Four Linux guests with brokers: two pairs that are at work at once, and one server with three clients. What they do is in
# programs/guests-four.sh.
program_guests guests-four server:8 client:9 second:10 third:11
/job/fordway guests meet server=10.0.0.8 client=10.0.0.9 second=10.0.0.10 third=10.0.0.11
for guest in $guests; do xl unpause "$guest"; done
for guest in $guests; do has_said "$guest" 'guest: done' 600; done
ended
for guest in client third; do compared $guest pair GET; done
for guest in client second third; do compared $guest three GET; done
for guest in $guests; do
    rings_of "$guest" pair three
    stop "$guest"
done
