#include "loop.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int loop_open(struct loop *loop)
{
    loop->batch_length = 0;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    return loop->epoll < 0 ? errno : 0;
}

void watch_init(struct watch *watch, int fd, watch_ready ready, void *owner)
{
    *watch = (struct watch){.fd = fd, .ready = ready, .owner = owner};
}

bool watch_for(struct loop *loop, struct watch *watch, uint32_t mask)
{
    if (watch->fd < 0 || (watch->registered && watch->mask == mask))
        return watch->fd >= 0;
    struct epoll_event event = {.events = mask, .data.ptr = watch};
    if (epoll_ctl(loop->epoll, watch->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, watch->fd, &event) < 0) {
        tell("cannot wait for a descriptor", strerror(errno));
        return false;
    }
    watch->registered = true;
    watch->mask = mask;
    return true;
}

void watch_stop(struct loop *loop, struct watch *watch)
{
    if (!watch->registered)
        return;
    if (epoll_ctl(loop->epoll, EPOLL_CTL_DEL, watch->fd, NULL) < 0)
        tell("cannot stop waiting for a descriptor", strerror(errno));
    watch->registered = false;
    for (int at = 0; at < loop->batch_length; at++)
        if (loop->batch[at].data.ptr == watch)
            loop->batch[at].data.ptr = NULL;
}

void watch_close(struct loop *loop, struct watch *watch)
{
    if (watch->fd < 0)
        return;
    watch_stop(loop, watch);
    close(watch->fd);
    watch->fd = -1;
}

void loop_once(struct loop *loop, int pause_ms)
{
    int count = epoll_wait(loop->epoll, loop->batch, LOOP_BATCH, pause_ms);
    loop->batch_length = count > 0 ? count : 0;
    for (int at = 0; at < loop->batch_length; at++) {
        struct watch *watch = loop->batch[at].data.ptr;
        if (watch)
            watch->ready(watch, loop->batch[at].events);
    }
    loop->batch_length = 0;
}

int64_t now_ns(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void tell(const char *what, const char *why)
{
    char line[512];
    int length = snprintf(line, sizeof line, "agent: %s: %s\n", what, why);
    if (length < 0)
        return;
    size_t size = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
    struct pollfd room = {.fd = 2, .events = POLLOUT}; /* of a pipe: for 4096 bytes */
    if (poll(&room, 1, 0) != 1 || !(room.revents & POLLOUT) || write(2, line, size) < 0)
        return; /* nobody to tell */
}
