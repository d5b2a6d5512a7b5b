// What the programs about signal handlers share.
#ifndef HANDLERS_H
#define HANDLERS_H
#include "try.h"
#define HELPER __attribute__((unused)) static
#define MB (1 << 20)

HELPER volatile sig_atomic_t seen;
HELPER int handler_fd;
HELPER void nothing(int signal) { (void)signal, seen++; }
HELPER void handle(int signal, int flags, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    if (sigaction(signal, &action, NULL)) die("sigaction");
}
HELPER void tick(int us) {
    struct itimerval often = {{0, us}, {0, us}};
    if (setitimer(ITIMER_REAL, &often, NULL)) die("setitimer");
}
HELPER void idle_b(int fd) {
    (void)fd;
    step();
}
#endif
