/* IDENTIFY: what makes a guest another machine than the one it was forked from, and the receipt of it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "network.h"
#include "sha256.h"

/* linux/random.h, which C libraries do not bring along. */
struct pool_entropy {
    int bits;
    int length;
    uint8_t data[512];
};
#define ADD_ENTROPY _IOW('R', 0x03, int[2])
#define RESEED _IO('R', 0x07)

enum { SEED_MAX = 512, /* that much is counted; all is mixed in */ NAME_BYTES = 256, RANDOM_BYTES = 16, INTERFACES_MAX = 64 };

#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define BOOT_ID_OVERLAY "/run/.boot_id"
#define MACHINE_ID "/etc/machine-id"

/* One line of the receipt: what, and `done`, `mixed`, or why not. */
static void put_step(struct bytes *out, const char *what, int number)
{
    char text[64];
    if (number == 0)
        snprintf(text, sizeof text, "%s=done", what);
    else if (number < 0)
        snprintf(text, sizeof text, "%s=mixed", what);
    else
        snprintf(text, sizeof text, "%s=refused:%s", what, errno_name(number));
    put_text(out, K_STEP, text);
}

/* A small file, whole or as it was. 0, or a number of errno. */
static int replace_file(const char *path, struct span value, mode_t mode)
{
    char beside[128];
    snprintf(beside, sizeof beside, "%s.new", path);
    if (unlink(beside) < 0 && errno != ENOENT)
        return errno;
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return errno;
    int number = 0;
    if (write(fd, value.data, value.length) != (ssize_t)value.length || write(fd, "\n", 1) != 1)
        number = errno ? errno : ENOSPC;
    close(fd);
    if (!number && rename(beside, path) < 0)
        number = errno;
    if (number)
        unlink(beside);
    return number;
}

/* -1: only mixed in, without being counted as entropy or drawn on at once. */
static int add_entropy(struct span seed)
{
    int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int number = 0;
    size_t length = seed.length < SEED_MAX ? seed.length : SEED_MAX;
    struct pool_entropy entropy = {.bits = (int)(8 * length), .length = (int)length};
    memcpy(entropy.data, seed.data, length);
    if (ioctl(fd, (ioctl_call)ADD_ENTROPY, &entropy) < 0 || ioctl(fd, (ioctl_call)RESEED) < 0)
        number = write(fd, seed.data, seed.length) == (ssize_t)seed.length ? -1 : errno;
    explicit_bzero(&entropy, sizeof entropy);
    close(fd);
    return number;
}

static int set_clock(int64_t time_ns)
{
    struct timespec time = {.tv_sec = time_ns / 1000000000, .tv_nsec = time_ns % 1000000000};
    return clock_settime(CLOCK_REALTIME, &time) < 0 ? errno : 0;
}

/* Only where the agent is the machine's first process: elsewhere the driver has done it. */
static int set_boot_id(const struct agent *agent, struct span value)
{
    if (!agent->config.init)
        return EPERM;
    int number = replace_file(BOOT_ID_OVERLAY, value, 0444);
    if (number)
        return number;
    umount2(BOOT_ID, MNT_DETACH); /* of an identity before */
    return mount(BOOT_ID_OVERLAY, BOOT_ID, NULL, MS_BIND, NULL) < 0 ? errno : 0;
}

static int set_token(struct agent *agent, struct span value)
{
    char *token = span_copy(value);
    if (!token)
        return ENOMEM;
    if (agent->config.token)
        explicit_bzero(agent->config.token, strlen(agent->config.token));
    free(agent->config.token);
    agent->config.token = token;
    return 0;
}

static void put_file(struct bytes *out, uint8_t key, const char *path)
{
    char text[NAME_BYTES];
    ssize_t length = read_small(path, text, sizeof text);
    while (length > 0 && text[length - 1] == '\n')
        text[--length] = '\0';
    if (length > 0)
        put_text(out, key, text);
}

/* NAME MAC ADDRESS/PREFIX, what is not there as `-`. */
static void put_interfaces(struct bytes *out)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) < 0)
        return;
    int count = 0;
    for (struct ifaddrs *each = all; each && count < INTERFACES_MAX; each = each->ifa_next) {
        char text[160], address[INET6_ADDRSTRLEN] = "";
        if (!each->ifa_addr)
            continue;
        if (each->ifa_addr->sa_family == AF_PACKET) {
            const struct sockaddr_ll *link = (const struct sockaddr_ll *)(const void *)each->ifa_addr;
            const unsigned char *mac = link->sll_addr;
            snprintf(text, sizeof text, "%s %02x:%02x:%02x:%02x:%02x:%02x -", each->ifa_name, mac[0], mac[1], mac[2],
                     mac[3], mac[4], mac[5]);
        } else if (each->ifa_addr->sa_family == AF_INET && each->ifa_netmask) {
            const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)each->ifa_addr;
            const struct sockaddr_in *mask = (const struct sockaddr_in *)(const void *)each->ifa_netmask;
            inet_ntop(AF_INET, &in->sin_addr, address, sizeof address);
            snprintf(text, sizeof text, "%s - %s/%d", each->ifa_name, address,
                     __builtin_popcount(mask->sin_addr.s_addr));
        } else if (each->ifa_addr->sa_family == AF_INET6) {
            const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)each->ifa_addr;
            inet_ntop(AF_INET6, &in->sin6_addr, address, sizeof address);
            snprintf(text, sizeof text, "%s - %s", each->ifa_name, address);
        } else {
            continue;
        }
        put_text(out, K_INTERFACE, text);
        count++;
    }
    freeifaddrs(all);
}

/* What the guest itself now sees. The token is shown by a digest over it and the fresh random bytes. */
static void put_receipt(struct agent *agent, struct bytes *out)
{
    char name[NAME_BYTES] = "";
    uint8_t fresh[RANDOM_BYTES];
    struct timespec now = {0};
    if (gethostname(name, sizeof name - 1) == 0)
        put_text(out, K_HOSTNAME, name);
    put_file(out, K_BOOT_ID, BOOT_ID);
    put_file(out, K_MACHINE_ID, MACHINE_ID);
    if (clock_gettime(CLOCK_REALTIME, &now) == 0)
        put_number(out, K_TIME_NS, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec);
    if (getrandom(fresh, sizeof fresh, GRND_NONBLOCK) == sizeof fresh) {
        put_bytes(out, K_RANDOM, fresh, sizeof fresh);
        if (agent->config.token) {
            struct sha256 hash;
            uint8_t digest[SHA256_BYTES];
            sha256_begin(&hash);
            sha256_put(&hash, agent->config.token, strlen(agent->config.token));
            sha256_put(&hash, fresh, sizeof fresh);
            sha256_end(&hash, digest);
            put_bytes(out, K_SHA256, digest, sizeof digest);
        }
    }
    put_interfaces(out);
}

static void set_interfaces(struct span payload, struct bytes *out)
{
    uint8_t key;
    struct span value;
    for (size_t at = 0; fields_next(payload, &at, &key, &value);)
        if (key == K_INTERFACE) {
            char *text = span_copy(value);
            put_step(out, "interface", text ? network_set(text) : ENOMEM);
            free(text);
        }
}

bool identity_request(struct connection *connection, uint32_t channel, struct span payload)
{
    struct agent *agent = connection->agent;
    struct span hostname, machine_id, boot_id, token, seed;
    int64_t time_ns;
    if (!fields_text(payload, K_HOSTNAME, &hostname) || !fields_text(payload, K_MACHINE_ID, &machine_id) ||
        !fields_text(payload, K_BOOT_ID, &boot_id) || !fields_text(payload, K_TOKEN, &token) ||
        !fields_number(payload, K_TIME_NS, 0, &time_ns))
        return false;
    struct bytes *out = send_begin(connection, IDENTITY, channel);
    if (fields_find(payload, K_SEED, &seed))
        put_step(out, "entropy", add_entropy(seed));
    if (time_ns)
        put_step(out, "clock", set_clock(time_ns));
    if (hostname.length)
        put_step(out, "hostname", sethostname((const char *)hostname.data, hostname.length) < 0 ? errno : 0);
    if (machine_id.length)
        put_step(out, "machine_id", replace_file(MACHINE_ID, machine_id, 0444));
    if (boot_id.length)
        put_step(out, "boot_id", set_boot_id(agent, boot_id));
    if (token.length)
        put_step(out, "token", set_token(agent, token));
    set_interfaces(payload, out);
    put_receipt(agent, out);
    send_end(connection);
    return true;
}
