#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "loop.h"

enum { WORDS = 4 };

static int ask(int fd, ioctl_call call, struct ifreq *request)
{
    return ioctl(fd, call, request) < 0 ? errno : 0;
}

static int set_mac(int fd, struct ifreq *request, const char *text)
{
    unsigned int mac[6];
    if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]) != 6)
        return EINVAL;
    request->ifr_flags = 0; /* a device changes its address while it is down */
    int number = ask(fd, SIOCSIFFLAGS, request);
    if (number)
        return number;
    memset(&request->ifr_hwaddr, 0, sizeof request->ifr_hwaddr);
    request->ifr_hwaddr.sa_family = ARPHRD_ETHER;
    for (int at = 0; at < 6; at++)
        request->ifr_hwaddr.sa_data[at] = (char)mac[at];
    return ask(fd, SIOCSIFHWADDR, request);
}

static void put_address(struct sockaddr *to, struct in_addr address)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = address};
    memcpy(to, &in, sizeof in);
}

static int set_address(int fd, struct ifreq *request, char *text)
{
    struct in_addr address, mask;
    char *slash = strchr(text, '/');
    long prefix = slash ? strtol(slash + 1, NULL, 10) : -1;
    if (slash)
        *slash = '\0';
    if (prefix < 0 || prefix > 32 || inet_pton(AF_INET, text, &address) != 1)
        return EINVAL;
    mask.s_addr = htonl(prefix ? ~(uint32_t)0 << (32 - prefix) : 0);
    put_address(&request->ifr_addr, address);
    int number = ask(fd, SIOCSIFADDR, request);
    put_address(&request->ifr_netmask, mask);
    return number ? number : ask(fd, SIOCSIFNETMASK, request);
}

static int set_gateway(int fd, char *name, const char *text)
{
    struct in_addr gateway, any = {0};
    if (inet_pton(AF_INET, text, &gateway) != 1)
        return EINVAL;
    struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY, .rt_dev = name};
    put_address(&route.rt_dst, any);
    put_address(&route.rt_genmask, any);
    put_address(&route.rt_gateway, gateway);
    return ioctl(fd, SIOCADDRT, &route) < 0 && errno != EEXIST ? errno : 0;
}

int network_set(char *text)
{
    char *words[WORDS] = {NULL};
    size_t count = 0;
    for (char *rest = text, *word; count < WORDS && (word = strsep(&rest, " "));)
        words[count++] = word;
    struct ifreq request = {0};
    if (count != WORDS || !*words[0] || strlen(words[0]) >= sizeof request.ifr_name)
        return EINVAL;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", words[0]);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    int number = strcmp(words[1], "-") ? set_mac(fd, &request, words[1]) : 0;
    if (!number && strcmp(words[2], "-"))
        number = set_address(fd, &request, words[2]);
    if (!number) {
        request.ifr_flags = IFF_UP | IFF_RUNNING;
        number = ask(fd, SIOCSIFFLAGS, &request);
    }
    if (!number && strcmp(words[3], "-"))
        number = set_gateway(fd, words[0], words[3]);
    close(fd);
    return number;
}
