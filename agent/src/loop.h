/* One epoll loop. */
#ifndef LOOP_H
#define LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

enum { LOOP_BATCH = 64 };

/* What ioctl(2) is called with: C libraries differ in its type. */
#ifdef __GLIBC__
typedef unsigned long ioctl_call;
#else
typedef int ioctl_call;
#endif

struct watch;
typedef void (*watch_ready)(struct watch *watch, uint32_t events);

/* Part of whoever waits; `owner` leads back to it. */
struct watch {
    int fd;
    uint32_t mask;
    bool registered;
    watch_ready ready;
    void *owner;
};

struct loop {
    int epoll;
    struct epoll_event batch[LOOP_BATCH];
    int batch_length;
};

/* A number of errno, or 0. */
int loop_open(struct loop *loop);
void watch_init(struct watch *watch, int fd, watch_ready ready, void *owner);
/* Waits for these events from now on. False: the kernel refused, which is told on stderr. */
bool watch_for(struct loop *loop, struct watch *watch, uint32_t mask);
/* Waits for nothing; also what this round of events held for it is forgotten. */
void watch_stop(struct loop *loop, struct watch *watch);
void watch_close(struct loop *loop, struct watch *watch);
/* Waits at most `pause_ms` (-1: for ever) and serves what is ready. */
void loop_once(struct loop *loop, int pause_ms);

int64_t now_ns(void);
/* For whoever reads the sandbox's own error stream; a full pipe there never stops the agent. */
void tell(const char *what, const char *why);

#endif
