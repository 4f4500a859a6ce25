#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "config.h"
#include "stream.h"

enum { AGAIN_MS = 250, CONNECT_MS = 20 };

struct relay;

/* One accepted connection. What comes from it is read only when it may be sent on, so that nothing is kept of it. */
struct peer {
    struct relay *relay;
    struct peer *next;
    struct watch watch;
    struct link *link;
    struct bytes out; /* at most a window */
    bool readable;
    bool over; /* once `out` is sent */
    bool dead;
};

struct relay {
    struct loop loop;
    struct config config;
    struct mux mux;
    struct stream stream;
    struct watch listener;
    struct watch signals;
    struct peer *peers;
    bool done;
};

static void peer_wait(struct peer *peer)
{
    uint32_t mask = (peer->readable || peer->over ? 0 : (uint32_t)EPOLLIN) | (peer->out.length ? EPOLLOUT : 0);
    if (peer->dead)
        return;
    if (!watch_for(&peer->relay->loop, &peer->watch, mask))
        peer->dead = true;
}

static void peer_close(struct peer *peer)
{
    if (peer->link)
        mux_close(peer->link);
    peer->link = NULL;
    peer->dead = true;
}

static void peer_send(struct peer *peer)
{
    while (peer->out.length && !peer->dead) {
        ssize_t sent = send(peer->watch.fd, bytes_head(&peer->out), peer->out.length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN)
            break;
        if (sent < 0) {
            peer_close(peer);
            return;
        }
        bytes_take(&peer->out, (size_t)sent);
        if (peer->link)
            mux_taken(peer->link, (size_t)sent);
    }
    if (peer->over && !peer->out.length)
        peer->dead = true;
    peer_wait(peer);
}

static void peer_ready(struct watch *watch, uint32_t events)
{
    struct peer *peer = watch->owner;
    if (events & EPOLLOUT)
        peer_send(peer);
    if (events & EPOLLIN)
        peer->readable = true;
    else if (events & (EPOLLHUP | EPOLLERR))
        peer_close(peer);
    peer_wait(peer);
}

static size_t link_wanted(struct link *link, uint8_t *data, size_t size)
{
    struct peer *peer = link->owner;
    if (!peer->readable)
        return 0;
    ssize_t length = read(peer->watch.fd, data, size);
    if (length > 0)
        return (size_t)length;
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) {
        peer->readable = false;
        peer_wait(peer);
        return 0;
    }
    peer_close(peer);
    return 0;
}

static void link_received(struct link *link, const uint8_t *data, size_t length)
{
    struct peer *peer = link->owner;
    bytes_put(&peer->out, data, length);
    if (peer->out.failed)
        peer_close(peer);
    else
        peer_send(peer);
}

static void link_closed(struct link *link)
{
    struct peer *peer = link->owner;
    peer->link = NULL;
    peer->over = true;
    peer_send(peer);
}

static void *link_opened(struct link *link)
{
    (void)link;
    return NULL; /* only this side opens any */
}

static void listener_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct relay *relay = watch->owner;
    int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer) {
        close(fd);
        return;
    }
    peer->relay = relay;
    watch_init(&peer->watch, fd, peer_ready, peer);
    peer->next = relay->peers;
    relay->peers = peer;
    peer->link = mux_open(&relay->mux, peer);
    peer->dead = !peer->link;
    peer_wait(peer);
}

static const struct mux_hooks hooks = {link_opened, link_received, link_wanted, link_closed};

static void listen_as_may_be(struct relay *relay)
{
    if (relay->mux.in_step && relay->mux.count < MUX_LINKS)
        watch_for(&relay->loop, &relay->listener, EPOLLIN);
    else
        watch_stop(&relay->loop, &relay->listener);
}

static void guest_lost(struct stream *stream)
{
    struct relay *relay = stream->mux->owner;
    if (!relay->config.connect) {
        relay->done = true;
        return;
    }
    stream_close(stream);
    if (!mux_restart(&relay->mux))
        relay->done = true;
}

static void try_connect(struct relay *relay)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(relay->config.connect) >= sizeof address.sun_path) {
        tell("the path of the socket is too long", relay->config.connect);
        relay->done = true;
        return;
    }
    strcpy(address.sun_path, relay->config.connect);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        stream_open(&relay->stream, &relay->loop, &relay->mux, fd, fd))
        close(fd);
}

static void signals_ready(struct watch *watch, uint32_t events)
{
    (void)events;
    struct relay *relay = watch->owner;
    struct signalfd_siginfo told;
    while (read(watch->fd, &told, sizeof told) == sizeof told) {
        if (told.ssi_signo == SIGHUP) {
            if (!mux_restart(&relay->mux))
                relay->done = true;
        } else {
            relay->done = true;
        }
    }
}

static void bury(struct relay *relay)
{
    for (struct peer **at = &relay->peers; *at;) {
        struct peer *peer = *at;
        if (!peer->dead) {
            at = &peer->next;
            continue;
        }
        *at = peer->next;
        peer_close(peer);
        watch_close(&relay->loop, &peer->watch);
        bytes_free(&peer->out);
        free(peer);
    }
}

static const char *set_up(struct relay *relay)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGHUP);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGINT);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (relay->config.tied && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
        return "it cannot be tied to its parent";
    int fd = signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0 || loop_open(&relay->loop))
        return "no signalfd or epoll";
    watch_init(&relay->signals, fd, signals_ready, relay);
    if (!watch_for(&relay->loop, &relay->signals, EPOLLIN))
        return "signals cannot be waited for";
    int flags = fcntl(relay->config.listen_fd, F_GETFL);
    if (flags < 0 || fcntl(relay->config.listen_fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return "listen_fd is no descriptor";
    watch_init(&relay->listener, relay->config.listen_fd, listener_ready, relay);
    relay->stream.lost = guest_lost;
    relay->stream.in.fd = relay->stream.out.fd = -1;
    relay->stream.loop = &relay->loop;
    mux_init(&relay->mux, &hooks, relay, true);
    if (!mux_restart(&relay->mux))
        return "no randomness";
    if (relay->config.connect)
        return NULL;
    if (relay->config.in_fd < 0)
        return "no connect, and no in_fd and out_fd";
    return stream_open(&relay->stream, &relay->loop, &relay->mux, relay->config.in_fd, relay->config.out_fd)
               ? "the stream cannot be waited for"
               : NULL;
}

static void run(struct relay *relay)
{
    int64_t again = now_ns() + (int64_t)AGAIN_MS * 1000000;
    while (!relay->done) {
        if (relay->stream.in.fd < 0 && relay->config.connect)
            try_connect(relay);
        stream_flush(&relay->stream);
        listen_as_may_be(relay);
        bury(relay);
        int pause = relay->stream.in.fd < 0 ? CONNECT_MS : relay->mux.in_step ? -1 : AGAIN_MS;
        loop_once(&relay->loop, pause);
        if (!relay->mux.in_step && now_ns() >= again) { /* the agent may not have been there to hear it */
            relay->mux.reset = true;
            again = now_ns() + (int64_t)AGAIN_MS * 1000000;
        }
    }
}

int relay_main(const char *text, size_t length)
{
    struct relay *relay = calloc(1, sizeof *relay);
    if (!relay) {
        tell("it cannot start", "out of memory");
        return 70;
    }
    config_init(&relay->config);
    const char *why = config_read(&relay->config, text, length);
    if (!why)
        why = set_up(relay);
    if (why) {
        tell("it cannot start", why);
        return 64;
    }
    run(relay);
    mux_free(&relay->mux);
    for (struct peer *each = relay->peers; each; each = each->next)
        each->dead = true;
    bury(relay);
    stream_close(&relay->stream);
    config_free(&relay->config);
    free(relay);
    return 0;
}
