#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loop.h"

struct place {
    const char *path;
    const char *kind;
    unsigned long flags;
    const char *options;
};

/* Whether something is mounted there: then it is another file system than its folder. */
static bool is_mounted(const char *path)
{
    char above[64];
    struct stat here, there;
    size_t length = (size_t)(strrchr(path, '/') - path);
    if (length >= sizeof above)
        return false;
    memcpy(above, path, length);
    above[length] = '\0';
    return stat(path, &here) == 0 && stat(length ? above : "/", &there) == 0 && here.st_dev != there.st_dev;
}

void init_mount(void)
{
    static const struct place places[] = {
        {"/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
        {"/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL},
        {"/dev", "devtmpfs", MS_NOSUID, "mode=755"},
        {"/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "ptmxmode=0666,mode=620"},
        {"/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
        {"/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"},
        {"/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"},
    };
    for (size_t at = 0; at < sizeof places / sizeof *places; at++) {
        const struct place *place = &places[at];
        if (mkdir(place->path, 0755) < 0 && errno != EEXIST)
            tell(place->path, strerror(errno));
        if (!is_mounted(place->path) &&
            mount(place->kind, place->path, place->kind, place->flags, place->options) < 0)
            tell(place->path, strerror(errno));
    }
    static const char *const links[][2] = {
        {"/proc/self/fd", "/dev/fd"},
        {"/proc/self/fd/0", "/dev/stdin"},
        {"/proc/self/fd/1", "/dev/stdout"},
        {"/proc/self/fd/2", "/dev/stderr"},
    };
    for (size_t at = 0; at < sizeof links / sizeof *links; at++)
        if (symlink(links[at][0], links[at][1]) < 0 && errno != EEXIST)
            tell(links[at][1], strerror(errno));
}

void init_power_off(void)
{
    sync();
    reboot(RB_POWER_OFF);
    tell("the machine does not go off", strerror(errno));
}

static void report(int number)
{
    static const char start[] = "agent: crashed with signal ";
    char digits[4] = {(char)('0' + number / 10 % 10), (char)('0' + number % 10), '\n', 0};
    if (write(2, start, sizeof start - 1) < 0 || write(2, digits, 3) < 0)
        _exit(70);
}

static void crashed(int number)
{
    report(number);
    _exit(70);
}

/* A panic would be louder, but leaves the machine running. */
static void machine_crashed(int number)
{
    int console = open("/dev/console", O_WRONLY | O_NOCTTY);
    if (console >= 0)
        dup2(console, 2);
    report(number);
    sync();
    reboot(RB_POWER_OFF);
    _exit(70);
}

void init_crash_reports(bool machine)
{
#ifndef SANITIZED
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};
    struct sigaction action = {.sa_handler = machine ? machine_crashed : crashed};
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++)
        sigaction(numbers[at], &action, NULL);
#else
    (void)machine;
    (void)crashed;
    (void)machine_crashed;
#endif
}
