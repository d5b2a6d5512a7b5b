// The CPUs that a thread may use stay its own affair, also where the library has it change its
// CPU because its peer works on the same one.
#include "try.h"
#include <sched.h>
#include <sys/prctl.h>

enum { ROUNDS = 4000 };

static cpu_set_t had;
static void allow(cpu_set_t *set) {
    if (sched_setaffinity(0, sizeof *set, set)) die("sched_setaffinity: %s", error_name(errno));
}
static cpu_set_t allowed(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) die("sched_getaffinity: %s", error_name(errno));
    return set;
}
static int first(const cpu_set_t *set) {
    int cpu = 0;
    while (!CPU_ISSET(cpu, set)) cpu++;
    return cpu;
}
// Every CPU but the first has something to do, so that no idle one attracts anybody.
static void busy_others(void) {
    for (int cpu = first(&had) + 1; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &had)) continue;
        pid_t parent = getpid(), child = fork();
        if (child < 0) die("fork");
        if (child) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(30);
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        allow(&one);
        while (getppid() == parent) continue;
        _exit(0);
    }
}
// On the first CPU, both of them, and then where they like.
static void together(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first(&had), &one);
    allow(&one);
    allow(&had);
}
static void talk(int fd) {
    step();
    for (int i = 0; i < ROUNDS; i++) {
        if (me == 'B') send_all(fd, i, 1, 1);
        recv_all(fd, i, 1, 1);
        if (me == 'A') send_all(fd, i, 1, 1);
    }
    cpu_set_t now = allowed();
    say("%s", CPU_EQUAL(&now, &had) ? "as before" : "changed");
    step();
}
static void all(int fd) {
    had = allowed();
    if (me == 'B') busy_others();
    step();
    together();
    talk(fd);
}
static void one(int fd) {
    cpu_set_t before = allowed();
    CPU_ZERO(&had);
    CPU_SET(first(&before), &had);
    allow(&had);
    talk(fd);
}
// Fewer than there are, and more than one, where the machine has three.
static void some(int fd) {
    had = allowed();
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &had)) last--;
    if (CPU_COUNT(&had) > 2) CPU_CLR(last, &had);
    allow(&had);
    if (me == 'B') busy_others();
    step();
    together();
    talk(fd);
}

const struct test_case cases[] = {
    {"all", WARM, all, all},
    {"one", WARM, one, one},
    {"some", WARM, some, some},
    {0},
};
